"""Accuracy without labels, one shift score, and alarms of streams that harm adaptation."""

from offsupport.monitor.accuracy import Estimate, Interval, LastAnswers, Window, estimate, estimate_accuracy
from offsupport.monitor.alarms import ALARMS, Alarms, CollapseMonitor, gathering, order_score, repeats
from offsupport.monitor.calibration import Calibration, calibrate
from offsupport.monitor.shift import CleanMoments, shift_score

__all__ = [
    "ALARMS",
    "Alarms",
    "Calibration",
    "CleanMoments",
    "CollapseMonitor",
    "Estimate",
    "Interval",
    "LastAnswers",
    "Window",
    "calibrate",
    "estimate",
    "estimate_accuracy",
    "gathering",
    "order_score",
    "repeats",
    "shift_score",
]
