//! How long a generation may be silent, by how the ones before it ended.
//!
//! A machine that is short of time for longer than a silence makes false alarms, and each costs a generation. So after a
//! silence the next generation may be silent for twice as long, up to [`SILENCE_MAX`]; one that ran for [`CALM`] makes this
//! forgotten. Invariant: never less than the setting. No state but two numbers.

use std::{
    io::{self, ErrorKind},
    time::Duration,
};

/// The longest silence, unless the setting is longer.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(5);
/// A generation that ran for this long says that the machine keeps up.
const CALM: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Debug)]
pub(super) struct Patience {
    setting: Duration,
    silence: Duration,
}

impl Patience {
    pub(super) fn new(setting: Duration) -> Self {
        Self { setting, silence: setting }
    }

    /// What the next generation is allowed.
    pub(super) fn silence(&self) -> Duration {
        self.silence
    }

    /// A generation has ended that ran for `lived`.
    pub(super) fn ended(&mut self, error: &io::Error, lived: Duration) {
        if lived >= CALM {
            self.silence = self.setting;
        }
        if error.kind() == ErrorKind::TimedOut {
            self.silence = (2 * self.silence).min(SILENCE_MAX.max(self.setting));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: generations that end by silence soon after each other, by a kill, and after a calm minute.
    /// Guarantees: each silence doubles the next one's, up to the bound; a kill changes nothing; calm makes it forgotten; a
    /// setting above the bound stays.
    #[test]
    fn a_false_alarm_makes_the_next_less_likely() {
        let (silence, kill) = (io::Error::from(ErrorKind::TimedOut), io::Error::from(ErrorKind::BrokenPipe));
        let (soon, late) = (Duration::from_secs(1), CALM);
        let mut patience = Patience::new(Duration::from_millis(800));
        let mut ends = |error, lived| {
            patience.ended(error, lived);
            patience.silence().as_millis()
        };
        assert_eq!([ends(&silence, soon), ends(&silence, soon), ends(&kill, soon)], [1600, 3200, 3200]);
        assert_eq!([ends(&silence, soon), ends(&silence, soon)], [5000, 5000]);
        assert_eq!([ends(&silence, late), ends(&kill, late)], [1600, 800]);
        let mut long = Patience::new(2 * SILENCE_MAX);
        long.ended(&silence, soon);
        assert_eq!(long.silence(), 2 * SILENCE_MAX);
    }
}
