"""report.html: one self-contained file that shows whether a run worked, with the evidence.

It is written only from the run folder, also for unfinished or nearly empty runs, and never needs the network. Plots are
hand-written SVG instead of plotly: with plotly.js inlined every report has 4.5 MB, which phones parse for seconds and mail servers
refuse, for plots that only need lines, bands and a tooltip. These reports have a few hundred kilobytes, print well, and show their plots
without JavaScript.

Model output is untrusted. It is escaped everywhere; a Content-Security-Policy that allows exactly one script, by its hash, and no other
resource is the second barrier.
"""
