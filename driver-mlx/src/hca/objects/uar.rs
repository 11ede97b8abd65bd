//! UAR pages: the control page, and those for BlueFlame.

use crate::cmd::input;
use crate::control;
use crate::error::Error;
use crate::hca::firmware::Firmware;
use crate::hca::memory::Memory;
use crate::host::Epoch;
use crate::platform::{Bar, Platform};
use crate::qp::SendRegister;
use crate::types::UarPage;
use mlx5_prm::commands::*;
use mlx5_prm::init_seg::{self, uar};
use mlx5_prm::opcode::Opcode;

/// UAR pages for BlueFlame; each holds four registers.
const PAGES: usize = 16;
/// `used` of a page without a free register.
const FULL: u8 = (1 << uar::BLUEFLAME_REGISTERS) - 1;

/// UAR pages whose registers belong to one QP each.
pub(super) struct BlueFlame<B> {
    pages: [Page<B>; PAGES],
    /// The platform has refused to map a UAR page write-combining.
    refused: bool,
}

/// A page, its write-combining view, and a bit for each register that a QP has.
#[derive(Clone, Copy)]
struct Page<B> {
    page: Option<(UarPage, B)>,
    used: u8,
}

/// A BlueFlame register of one QP.
pub(super) struct Register<B> {
    page: UarPage,
    /// The page's write-combining view.
    view: B,
    /// Offset in `view` of the first half.
    offset: usize,
    /// Bytes of a half.
    half_len: usize,
    index: (u8, u8),
}

impl<B: Bar> Register<B> {
    pub(super) fn page(&self) -> UarPage {
        self.page
    }

    /// Name to give it back by.
    pub(super) fn index(&self) -> (u8, u8) {
        self.index
    }

    /// The register as its QP rings it.
    pub(super) fn send_register(&self, epoch: Epoch) -> SendRegister<B::DoorbellRegister> {
        let handle = control::doorbell_register(self.view, self.offset, 2 * self.half_len);
        SendRegister::new(handle, self.half_len, epoch)
    }
}

impl<B: Bar> BlueFlame<B> {
    pub(super) fn new() -> Self {
        Self { pages: [Page { page: None, used: 0 }; PAGES], refused: false }
    }

    /// Takes a register. Returns `None` if there is none.
    pub(super) fn take<P: Platform<Bar = B>>(
        &mut self,
        firmware: &mut Firmware<'_, P>,
        memory: &mut Memory<'_>,
    ) -> Option<Register<B>> {
        let log_size = u32::from(firmware.caps().log_bf_reg_size);
        if self.refused || !(4..=9).contains(&log_size) {
            return None;
        }
        let index = self.pages.iter().position(|entry| entry.used != FULL)?;
        let entry = self.pages.get_mut(index)?;
        let (page, view) = match entry.page {
            Some(page) => page,
            None => {
                let page = alloc(firmware, memory).ok()?;
                let start = page.get() as usize * uar::PAGE_SIZE;
                match firmware.platform().uar_write_combining(start, uar::PAGE_SIZE) {
                    Some(view) => *entry.page.insert((page, view)),
                    None => {
                        // Freeing the page here could take as long as a command may. Tear-down
                        // frees it, and no other page is tried.
                        self.refused = true;
                        *entry = Page { page: Some((page, firmware.bar())), used: FULL };
                        return None;
                    }
                }
            }
        };
        let register = entry.used.trailing_ones() as usize;
        entry.used |= 1 << register;
        let offset = uar::blueflame(register, false, log_size);
        let half_len = 1 << (log_size - 1);
        Some(Register { page, view, offset, half_len, index: (index as u8, register as u8) })
    }

    /// Gives a register back.
    pub(super) fn give(&mut self, register: Option<(u8, u8)>) {
        if let Some((index, register)) = register
            && let Some(entry) = self.pages.get_mut(usize::from(index))
        {
            entry.used &= !(1 << register);
        }
    }

    /// Takes the pages, to deallocate them.
    pub(super) fn take_pages(&mut self) -> impl Iterator<Item = UarPage> {
        self.pages.iter_mut().filter_map(|entry| entry.page.take()).map(|(page, _)| page)
    }

    /// Forgets the pages of a device that was reset.
    pub(super) fn forget_pages(&mut self) {
        self.pages = [Page { page: None, used: 0 }; PAGES];
    }
}

/// Allocates a UAR page inside the BAR, behind the initialization segment.
pub(super) fn alloc<P: Platform>(
    firmware: &mut Firmware<'_, P>,
    memory: &mut Memory<'_>,
) -> Result<UarPage, Error> {
    let mut out = [0; alloc_uar_out::SIZE];
    firmware.exec(memory, &input::<{ alloc_uar_in::SIZE }>(Opcode::ALLOC_UAR, 0), &mut out)?;
    let page = UarPage::new(alloc_uar_out::uar.get32(&out));
    let start = page.get() as usize * uar::PAGE_SIZE;
    if start < init_seg::INIT_SEG_LEN || start + uar::PAGE_SIZE > firmware.bar().len() {
        return Err(Error::BadAnswer { step: firmware.step(), field: "uar", value: u64::from(page.get()) });
    }
    Ok(page)
}

/// Deallocates a UAR page.
pub(super) fn dealloc<P: Platform>(
    firmware: &mut Firmware<'_, P>,
    memory: &mut Memory<'_>,
    page: UarPage,
) -> Result<(), Error> {
    let mut free = input::<{ dealloc_uar_in::SIZE }>(Opcode::DEALLOC_UAR, 0);
    dealloc_uar_in::uar.set(&mut free, page.get());
    firmware.exec(memory, &free, &mut [0; dealloc_uar_out::SIZE])
}
