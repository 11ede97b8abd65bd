//! Memory windows.

use super::region::ANY_QPN;
use crate::cmd::input;
use crate::error::Error;
use crate::hca::Hca;
use crate::mw::{MemoryWindow, MwType};
use crate::platform::Platform;
use crate::types::{Pd, RKey};
use mlx5_prm::commands::*;
use mlx5_prm::contexts::mkc;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::value::AccessMode;

/// Octowords (16 bytes) of a window's list: one piece, in whole 64 bytes.
const WINDOW_OCTOWORDS: u32 = 4;

impl<P: Platform> Hca<'_, P> {
    /// Makes a memory window, bound to nothing.
    ///
    /// # Errors
    /// Any [`Error`] of a command; [`Error::MissingCapability`].
    pub fn alloc_mw(&mut self, pd: Pd, kind: MwType) -> Result<MemoryWindow, Error> {
        if !self.firmware.caps().imaicl {
            return Err(Error::MissingCapability("imaicl"));
        }
        let domain = self.firmware.resolve(&pd)?;
        let variant = self.objects.variants.take(self.firmware.now());
        let mut create = input::<{ create_mkey_in::SIZE }>(Opcode::CREATE_MKEY, 0);
        let key = create_mkey_in::memory_key_mkey_entry.of_mut(&mut create);
        mkc::free.set(key, true);
        mkc::umr_en.set(key, true);
        mkc::lr.set(key, true);
        mkc::en_rinval.set(key, kind == MwType::Two);
        mkc::access_mode_1_0.set(key, AccessMode::KLMS.0);
        mkc::qpn.set(key, ANY_QPN);
        mkc::mkey_7_0.set(key, variant);
        mkc::pd.set(key, domain.get());
        mkc::translations_octword_size.set(key, WINDOW_OCTOWORDS);
        let mut out = [0; create_mkey_out::SIZE];
        self.exec(&create, &mut out)?;
        let number = create_mkey_out::mkey_index.get32(&out) << 8 | u32::from(variant);
        Ok(MemoryWindow::new(RKey::new(number), kind, self.firmware.generation()))
    }

    /// Ends a memory window, bound or not. A window from before a recovery is gone already.
    ///
    /// # Errors
    /// Any [`Error`] of a command; [`Error::NotAllocated`] for a window of another HCA.
    pub fn dealloc_mw(&mut self, window: MemoryWindow) -> Result<(), Error> {
        self.destroy_mkey(&window)
    }
}
