
import pickle
class Point:
    def __init__(self, x):
        self.x = x
again = pickle.loads(pickle.dumps(Point(4)))
print(again.x, __name__, type(again).__module__)
