"""What an answer is worth: functions, rules, and their combination."""
