//! The device's state in firmware pages: a word at both ends of each page, which software must not change.

use crate::device::Device;
use crate::log::Subject;
use crate::pages::PAGE;
use crate::seams::{DmaFault, Io};
use mlx5_prm::status::HealthSyndrome;

/// Writes a page's marker at both ends.
pub(super) fn write_marker(io: &Io<'_>, page: u64, marker: u64) -> Result<(), DmaFault> {
    io.memory.store64(page, marker)?;
    io.memory.store64(page + PAGE - 8, marker)
}

/// Returns whether a page still has its marker at both ends.
fn is_intact(io: &Io<'_>, page: u64, marker: u64) -> bool {
    [page, page + PAGE - 8].into_iter().all(|at| io.memory.load64(at) == Ok(marker))
}

impl Device {
    /// Checks the next of the function's own pages and writes new state to it, as firmware does with
    /// each command.
    pub(super) fn check_page(&mut self, io: &mut Io<'_>) {
        if !self.profile.habits.adversary.page_marker {
            return;
        }
        let Some(page) = self.pages.next_to_check() else { return };
        let intact = is_intact(io, page, self.pages.marker(page, self.profile.port_guid));
        self.pages.set_checked(page);
        let marker = self.pages.marker(page, self.profile.port_guid);
        if !intact || write_marker(io, page, marker).is_err() {
            self.fail_by_page(page);
        }
    }

    /// Checks pages that the driver takes back from its own function (0) or another one.
    pub(super) fn check_taken_pages(&mut self, io: &mut Io<'_>, function: u32, taken: &[u64]) {
        if !self.profile.habits.adversary.page_marker {
            return;
        }
        let key = self.profile.port_guid;
        let Ok(pages) = self.pages_of(function, "") else { return };
        let changed = taken.iter().find(|page| !is_intact(io, **page, pages.marker(**page, key)));
        if let Some(page) = changed {
            self.fail_by_page(*page);
        }
    }

    fn fail_by_page(&mut self, page: u64) {
        self.log.refuse(Subject::Pages, "manage_pages_in.pas", format!("software wrote to {page:#x}"));
        self.objects.queues.fatal.get_or_insert(HealthSyndrome::FW_INTERNAL_ERR);
    }
}
