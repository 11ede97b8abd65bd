//! Pages where firmware wants more of them than the driver's own function needs: for other functions of the card, and at any time.

use super::refusal::Refusal;
use crate::device::{Device, Life};
use crate::pages::FirmwarePages;
use crate::seams::Io;
use mlx5_prm::caps::cmd_hca_cap;
use mlx5_prm::event::EventType;
use mlx5_prm::opcode::Opcode;

/// Portions that a hungry card holds before it gives all of them back.
const PORTIONS: u32 = 16;
/// In a page request: the function ended, and whoever gave it pages has them back.
const RELEASE_ALL: u32 = 1 << 30;

impl Device {
    /// A command came: a hungry card wants another portion, or nothing any more.
    pub(super) fn grow_hungry(&mut self, opcode: Opcode) {
        let portion = self.profile.habits.page_requests;
        if !self.hungers_during(opcode) {
            return;
        }
        if self.hunger >= portion.saturating_mul(PORTIONS) {
            self.hunger = 0;
        } else {
            self.hunger += portion;
        }
    }

    /// Whether a command may have to wait for a hungry card's pages. What answers page requests, and what begins and ends, does not.
    pub(super) fn hungers_during(&self, opcode: Opcode) -> bool {
        let exempt = matches!(
            opcode,
            Opcode::MANAGE_PAGES
                | Opcode::QUERY_PAGES
                | Opcode::ENABLE_HCA
                | Opcode::DISABLE_HCA
                | Opcode::INIT_HCA
                | Opcode::TEARDOWN_HCA
                | Opcode::CREATE_EQ
                | Opcode::DESTROY_EQ
        );
        self.profile.habits.page_requests != 0 && self.life == Life::Initialized && !exempt
    }

    /// The pages of a function that the driver gives pages for; its own is 0.
    pub(super) fn pages_of(&mut self, function: u32, field: &str) -> Result<&mut FirmwarePages, Refusal> {
        let missing = || Refusal::param(field, format!("function {function} is not this one"));
        match u16::try_from(function).map_err(|_| missing())? {
            0 => Ok(&mut self.pages),
            other => self.other_pages.get_mut(&other).ok_or_else(missing),
        }
    }

    /// Whether a page is some function's already.
    pub(super) fn holds_page(&self, page: u64) -> bool {
        self.pages.holds(page) || self.other_pages.values().any(|pages| pages.holds(page))
    }

    /// Whether [`follow_functions`](Self::follow_functions) has something to say.
    #[cold]
    #[inline(never)]
    pub(crate) fn functions_changed(&self) -> bool {
        let settled = |(function, wanted): &(u16, u32)| match self.other_pages.get(function) {
            Some(pages) => pages.needed() == *wanted,
            None => *wanted == 0,
        };
        let listened = self.life == Life::Initialized && self.tells_page_requests();
        listened && !self.profile.habits.other_functions.iter().all(settled)
    }

    /// Asks for the pages of other functions, or offers them back.
    #[cold]
    #[inline(never)]
    pub(crate) fn follow_functions(&mut self, io: &mut Io<'_>) {
        if self.life != Life::Initialized || !self.tells_page_requests() {
            return;
        }
        let releases = self.caps.current(cmd_hca_cap::release_all_pages) != 0;
        for (function, wanted) in self.profile.habits.other_functions.clone() {
            let pages = self.other_pages.entry(function).or_default();
            if pages.needed() == wanted {
                continue;
            }
            pages.set_needed(wanted);
            let ended = wanted == 0 && releases;
            if ended {
                self.budget.release(pages.memory());
                pages.clear();
            }
            let Some(request) = (if ended { Some(0) } else { pages.request(1) }) else { continue };
            let owner = u32::from(function) | if ended { RELEASE_ALL } else { 0 };
            let mut data = [0; 28];
            data[..4].copy_from_slice(&owner.to_be_bytes());
            data[4..8].copy_from_slice(&request.to_be_bytes());
            self.objects.queues.event(io, &mut self.log, EventType::PAGE_REQUEST, 0, &data);
        }
    }
}
