
text = input()
print(text[::-1], "é漢\U0001f600", sep="|")
