//! The first `mlx_open` of a machine whose HCA another driver left at work.

mod common;

use common::{Bed, alone};
use hca_model::{Census, Profile};
use mlx_firmware::life;

/// Its queues are in the memory that the firmware is about to give: the HCA must not reach that
/// memory before it is reset.
#[test]
fn an_hca_that_was_left_at_work_is_reset_before_it_may_master_the_bus() {
    let _alone = alone();
    let bed = Bed::new(Profile::node(0), 32 << 20);
    bed.leave_running();
    // Firmware of a machine leaves functions without a driver like this.
    bed.disable();
    assert_ne!(bed.world.census(0), Census::default());
    assert_eq!(bed.open(&bed.platform(), 32 << 20), 0, "{}", bed.said());
    assert_eq!((bed.resets.get(), bed.mastered_at_reset.get()), (1, Some(false)));
    assert_eq!(life::close(), 0, "{}", bed.said());
    // An orderly close needs no reset before the next open.
    assert_eq!(bed.open(&bed.platform(), 32 << 20), 0, "{}", bed.said());
    assert_eq!((life::close(), bed.resets.get()), (0, 1));
}
