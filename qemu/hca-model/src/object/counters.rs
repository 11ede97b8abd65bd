//! Q counter sets (PRM, command reference).

use super::table::Table;
use mlx5_prm::Field;
use mlx5_prm::commands::query_q_counter_out;

/// First counter set number; 0 means "none" in a QP context.
pub const FIRST_COUNTER_SET: u32 = 1;

/// All Q counter sets. A set is kept as the body of QUERY_Q_COUNTER's output.
#[derive(Debug)]
pub struct QCounters {
    /// By number.
    pub(crate) sets: Table<Vec<u8>>,
}

impl QCounters {
    /// No sets.
    #[must_use]
    pub const fn new(limit: u32) -> Self {
        Self { sets: Table::new(FIRST_COUNTER_SET, limit) }
    }

    /// Makes a set of zeros.
    pub fn allocate(&mut self) -> Option<u32> {
        self.sets.insert(|_| vec![0; query_q_counter_out::SIZE])
    }

    /// Adds one to `counter`, a field of `query_q_counter_out`, of the set a QP names. A set that does not exist is
    /// nobody's loss.
    pub fn bump(&mut self, counter_set_id: u8, counter: Field) {
        if let Some(set) = self.sets.get_mut(u32::from(counter_set_id)) {
            let value = counter.get32(set).wrapping_add(1);
            counter.set(set, value);
        }
    }
}
