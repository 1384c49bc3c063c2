
import os
pieces = []
while piece := os.read(0, 7):
    pieces.append(piece)
os.write(1, b"".join(pieces)[::-1])
