//! The y axis of a chart: from zero, or from below the lowest value, to a round number just above the highest one.

/// Maximum number of ticks of an axis, without the lowest one.
const MOST_STEPS: f64 = 10.0;

/// A range of values with ticks at round numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Axis {
    /// Lowest value; a whole number of steps.
    pub low: f64,
    /// Highest value; a whole number of steps.
    pub high: f64,
    /// From one tick to the next: 1, 2 or 5 times a power of ten.
    pub step: f64,
}

impl Axis {
    /// Makes the shortest axis that contains all of these values and zero.
    pub(super) fn over(values: impl IntoIterator<Item = f64>) -> Axis {
        let finite = values.into_iter().filter(|value| value.is_finite());
        let (lowest, highest) =
            finite.fold((0.0, 0.0), |(low, high): (f64, f64), value| (low.min(value), high.max(value)));
        if lowest == highest {
            return Axis { low: 0.0, high: 1.0, step: 0.2 };
        }
        let step = round_step((highest - lowest) / MOST_STEPS);
        // A value that is a whole number of steps except for rounding needs no further step.
        let steps = |value: f64| (value / step - 1e-9).ceil();
        Axis { low: -step * steps(-lowest), high: step * steps(highest), step }
    }

    /// Iterates over the ticks.
    pub(super) fn ticks(&self) -> impl Iterator<Item = f64> {
        let Axis { low, high, step } = *self;
        let first = (low / step).round() as i64;
        let last = (high / step).round() as i64;
        (first..=last).map(move |tick| tick as f64 * step)
    }

    /// Returns the label of a tick, with as many decimals as all labels need.
    pub(super) fn label(&self, tick: f64) -> String {
        let (tick, step, unit) = match self.high.max(-self.low) {
            ..10_000.0 => (tick, self.step, ""),
            ..10_000_000.0 => (tick / 1e3, self.step / 1e3, " k"),
            _ => (tick / 1e6, self.step / 1e6, " M"),
        };
        let decimals = (-step.log10() - 1e-9).ceil().max(0.0) as usize;
        let text = format!("{tick:.decimals$}");
        // Zero has no unit and no sign, even after rounding errors.
        if text.trim_start_matches('-').chars().all(|c| c == '0' || c == '.') { "0".into() } else { text + unit }
    }
}

/// Returns the smallest of 1, 2 and 5 times a power of ten that is at least `least`.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= least * (1.0 - 1e-9));
    factor.unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_ends_at_a_round_number_just_above_the_highest_value() {
        for (highest, top) in [
            (0.42, 0.45),
            (1.0, 1.0),
            (1.04, 1.2),
            (2.03, 2.5),
            (8.0, 8.0),
            (100.0, 100.0),
            (138_000.0, 140_000.0),
            (1305.0, 1400.0),
        ] {
            let axis = Axis::over([highest / 3.0, highest]);
            assert!((axis.high - top).abs() < 1e-9, "{highest}: {axis:?}");
            assert_eq!(axis.low, 0.0);
            assert!(axis.high >= highest && axis.high - highest < axis.step, "{highest}: {axis:?}");
            assert!((5..=11).contains(&axis.ticks().count()), "{highest}: {axis:?}");
        }
    }

    #[test]
    fn an_axis_goes_below_zero_only_for_negative_values() {
        let axis = Axis::over([-1.3, 7.2, f64::NAN]);
        assert_eq!(axis, Axis { low: -2.0, high: 8.0, step: 1.0 });
        let labels: Vec<String> = axis.ticks().map(|tick| axis.label(tick)).collect();
        assert_eq!(labels, ["-2", "-1", "0", "1", "2", "3", "4", "5", "6", "7", "8"]);
        assert_eq!(Axis::over([]).low, 0.0);
        assert_eq!(Axis::over([-3.0]).high, 0.0);
    }

    #[test]
    fn axis_labels_have_as_many_decimals_as_the_steps_need() {
        let label = |highest: f64, tick| Axis::over([highest]).label(tick);
        assert_eq!([label(0.42, 0.1), label(2.0, 0.5), label(40.0, 5.0)], ["0.10", "0.5", "5"]);
        assert_eq!([label(138_000.0, 20_000.0), label(16_000.0, 2000.0), label(3e7, 5e6)], ["20 k", "2 k", "5 M"]);
        assert_eq!(label(138_000.0, 0.0), "0");
    }
}
