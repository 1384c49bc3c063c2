
for line in range(960):
    print(f"{line:063d}")
