# carriage returns, erasures, bells, wide and invisible characters, invalid UTF-8: a fault in the reader or a loose comparison
import os
os.write(1, b"\xff\xfe\x00\x80\xc0\xaf\xed\xa0\x80" + b"\r\x1b[2K\x1b[1A\x1b]0;title\x07")
os.write(1, "\u202e\u200b\ufeff\u2028\x85\x0b\x0c\x1c 6174 *".encode())
os.write(1, b"\n" * 1000 + b"\x04\x1a\x00")
os.write(2, b"\xff\xfe" * 1000)
