class Solution:
    def twoSum(self, nums, target):
        seen = {}
        for place, value in enumerate(nums):
            if target - value in seen:
                return [seen[target - value], place]
            seen[value] = place
