//! Life cycle, pages and capabilities (PRM, command reference).

use super::markers::write_marker;
use super::refusal::{Outcome, Refusal};
use crate::device::{Device, Life};
use crate::log::Subject;
use crate::pages::{BadPage, PAGE_MEMORY};
use crate::profile::Strictness;
use crate::seams::Io;
use mlx5_prm::commands::*;
use mlx5_prm::contexts::query_adapter_param_block;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::CmdStatus;
use mlx5_prm::value::{CapType, ManagePagesOp, QueryPagesOp, TeardownProfile};

/// Only the function itself can be meant: it manages no others.
fn own_function(function_id: u32, embedded: bool, field: &str) -> Outcome {
    if function_id != 0 || embedded {
        return Err(Refusal::param(field, format!("function {function_id} is not this one")));
    }
    Ok(())
}

impl Device {
    pub(super) fn enable_hca(&mut self, input: &[u8]) -> Outcome {
        own_function(
            enable_hca_in::function_id.get32(input),
            enable_hca_in::embedded_cpu_function.is_set(input),
            "enable_hca_in.function_id",
        )?;
        if self.is_enabled() || (self.new_owner && self.profile.habits.no_take_over) {
            return Err(Refusal::new(CmdStatus::BAD_SYS_STATE, "", "enabled already"));
        }
        if self.new_owner {
            let left = self.objects.census();
            self.log.info(Subject::Device, format!("taken over; from the owner before: {left}"));
            self.let_go();
        }
        self.life = Life::Enabled;
        self.pages.set_needed(self.boot_pages());
        Ok(())
    }

    pub(super) fn disable_hca(&mut self, input: &[u8]) -> Outcome {
        own_function(
            disable_hca_in::function_id.get32(input),
            disable_hca_in::embedded_cpu_function.is_set(input),
            "disable_hca_in.function_id",
        )?;
        if self.life == Life::Initialized {
            return Err(Refusal::new(CmdStatus::BAD_SYS_STATE, "", "before TEARDOWN_HCA"));
        }
        let held = self.pages.given();
        if held != 0 {
            self.log.warn(
                Subject::Pages,
                "",
                format!("DISABLE_HCA while {held} pages are still the device's"),
            );
        }
        self.life = Life::Disabled;
        self.new_owner = false;
        self.budget.release(self.pages.memory());
        self.pages.clear();
        self.issi = 0;
        self.reset_caps();
        Ok(())
    }

    pub(super) fn query_issi(&self, output: &mut [u8]) -> Outcome {
        query_issi_out::current_issi.set(output, self.issi);
        query_issi_out::supported_issi_dw0.set(output, 0b11u32);
        Ok(())
    }

    pub(super) fn set_issi(&mut self, input: &[u8]) -> Outcome {
        let issi = set_issi_in::current_issi.get32(input);
        if issi > 1 {
            return Err(Refusal::param("set_issi_in.current_issi", format!("{issi} is not supported")));
        }
        if self.life == Life::Initialized {
            return Err(Refusal::new(CmdStatus::BAD_SYS_STATE, "", "after INIT_HCA"));
        }
        self.issi = issi as u16;
        Ok(())
    }

    pub(super) fn query_pages(&mut self, op_mod: u16, input: &[u8], output: &mut [u8]) -> Outcome {
        own_function(
            query_pages_in::function_id.get32(input),
            query_pages_in::embedded_cpu_function.is_set(input),
            "query_pages_in.function_id",
        )?;
        let needed = match QueryPagesOp(op_mod) {
            QueryPagesOp::BOOT => self.boot_pages(),
            QueryPagesOp::INIT if self.life != Life::Initialized => {
                self.boot_pages().saturating_add(self.init_pages())
            }
            // After INIT_HCA both ask what is missing now; a driver without events polls with it.
            QueryPagesOp::INIT | QueryPagesOp::REGULAR => {
                if self.life == Life::Initialized {
                    self.update_needed_pages();
                }
                self.pages.needed()
            }
            _ => return Err(Refusal::op_mod(op_mod)),
        };
        if self.life != Life::Initialized {
            self.pages.set_needed(needed);
        }
        query_pages_out::num_pages.set(output, self.pages.missing() as u32);
        Ok(())
    }

    pub(super) fn manage_pages(
        &mut self,
        io: &mut Io<'_>,
        op_mod: u16,
        input: &[u8],
        output: &mut Vec<u8>,
        output_len: usize,
    ) -> Outcome {
        let function = manage_pages_in::function_id.get32(input);
        let of = "manage_pages_in.function_id";
        if manage_pages_in::embedded_cpu_function.is_set(input) {
            own_function(function, true, of)?;
        }
        self.pages_of(function, of)?;
        let initialized = self.life == Life::Initialized;
        let entries = manage_pages_in::input_num_entries.get32(input);
        let field = "manage_pages_in.input_num_entries";
        match ManagePagesOp(op_mod) {
            ManagePagesOp::CANT_GIVE => {
                if entries != 0 {
                    return Err(Refusal::param(field, format!("{entries} where none can be given")));
                }
                let pages = self.pages_of(function, of)?;
                pages.refuse();
                let text = format!("the driver cannot give {} pages", pages.missing());
                self.log.warn(Subject::Pages, "", text);
                Ok(())
            }
            ManagePagesOp::GIVE => self.give_pages(io, function, input, entries),
            ManagePagesOp::TAKE => {
                let fits = output_len.saturating_sub(manage_pages_out::pas.offset) / 8;
                if entries as usize > fits {
                    let text = format!("{entries} asked, the output holds {fits}");
                    return Err(Refusal::new(CmdStatus::BAD_OUTP_LEN, field, text));
                }
                // Before INIT_HCA and after TEARDOWN_HCA nothing is kept in them yet, or any more.
                let held = self.pages_of(function, of)?;
                let kept = if initialized { held.needed() } else { 0 };
                let pages = held.take(entries, kept);
                self.check_taken_pages(io, function, &pages);
                self.budget.release(pages.len() as u64 * PAGE_MEMORY);
                self.meter.charge(pages.len() as u64);
                output.resize(manage_pages_out::pas.len_with(pages.len()), 0);
                manage_pages_out::output_num_entries.set(output, pages.len() as u32);
                for (i, page) in pages.iter().enumerate() {
                    manage_pages_out::pas.set_quad(output, i, *page);
                }
                Ok(())
            }
            _ => Err(Refusal::op_mod(op_mod)),
        }
    }

    fn give_pages(&mut self, io: &mut Io<'_>, function: u32, input: &[u8], entries: u32) -> Outcome {
        let count = manage_pages_in::pas.count(input);
        let field = "manage_pages_in.input_num_entries";
        if entries as usize > count {
            let text = format!("{entries} entries, {count} in the input");
            return Err(Refusal::new(CmdStatus::BAD_INP_LEN, field, text));
        }
        self.meter.charge(4 * u64::from(entries));
        let key = self.profile.port_guid;
        let mut pages = std::collections::BTreeSet::new();
        for i in 0..entries as usize {
            let page = manage_pages_in::pas.quad(input, i);
            let bad =
                |text: &str| Refusal::param(format!("manage_pages_in.pas[{i}]"), format!("{page:#x} {text}"));
            match self.pages.check(page) {
                Ok(()) if self.holds_page(page) => return Err(bad("is another function's")),
                Ok(()) => {}
                Err(BadPage::Unaligned) => return Err(bad("is not aligned to 4 KiB")),
                Err(BadPage::Twice) => return Err(bad("was given before")),
            }
            if !pages.insert(page) {
                return Err(bad("is given twice in one command"));
            }
            // The device uses its pages at once: what it cannot write is found now and not later. The content is its own.
            let marker = self.pages_of(function, field)?.marker(page, key);
            if write_marker(io, page, marker).is_err() {
                return Err(bad("is not accessible to the device"));
            }
        }
        self.hold(pages.len() as u64 * PAGE_MEMORY)?;
        self.pages_of(function, field)?.give(pages);
        Ok(())
    }

    pub(super) fn query_hca_cap(&self, op_mod: u16, input: &[u8], output: &mut [u8]) -> Outcome {
        own_function(
            query_hca_cap_in::function_id.get32(input),
            query_hca_cap_in::other_function.is_set(input),
            "query_hca_cap_in.function_id",
        )?;
        let kind = CapType(op_mod >> 1);
        let Some(block) = self.caps.query(kind, op_mod & 1 == 1) else {
            return Err(Refusal::param("query_hca_cap_in.op_mod", format!("capability type {kind}")));
        };
        if let Some(to) = query_hca_cap_out::capability.of_mut(output).get_mut(..block.len()) {
            to.copy_from_slice(block);
        }
        Ok(())
    }

    pub(super) fn set_hca_cap(&mut self, op_mod: u16, input: &[u8]) -> Outcome {
        own_function(
            set_hca_cap_in::function_id.get32(input),
            set_hca_cap_in::other_function.is_set(input),
            "set_hca_cap_in.function_id",
        )?;
        let boot = self.boot_pages();
        if self.pages.given() < boot {
            let text = format!("{} boot pages at hand, {boot} needed", self.pages.given());
            return Err(Refusal::new(CmdStatus::BAD_SYS_STATE, "", text));
        }
        if self.life == Life::Initialized {
            return Err(Refusal::new(CmdStatus::BAD_SYS_STATE, "", "after INIT_HCA"));
        }
        let block = set_hca_cap_in::capability.of(input);
        let changed = match CapType(op_mod >> 1) {
            _ if op_mod & 1 == 1 => return Err(Refusal::op_mod(op_mod)),
            CapType::GENERAL => self.caps.set_general(block, self.profile.strictness).map(|ignored| {
                for field in ignored {
                    self.log.warn(
                        Subject::Tolerated { opcode: Opcode::SET_HCA_CAP },
                        field.field,
                        field.text,
                    );
                }
            }),
            CapType::ATOMIC => self.caps.set_atomic(block),
            kind => return Err(Refusal::param("set_hca_cap_in.op_mod", format!("capability type {kind}"))),
        };
        changed.map_err(|bad| Refusal::param(bad.field, bad.text))
    }

    pub(super) fn init_hca(&mut self) -> Outcome {
        if self.life == Life::Initialized {
            return Err(Refusal::new(CmdStatus::BAD_SYS_STATE, "", "initialized already"));
        }
        let needed = self.boot_pages().saturating_add(self.init_pages());
        let given = self.pages.given();
        if given < needed {
            let text = format!("{given} pages at hand, {needed} needed");
            return Err(Refusal::new(CmdStatus::BAD_SYS_STATE, "manage_pages_in.pas", text));
        }
        self.initialize();
        Ok(())
    }

    pub(super) fn teardown_hca(&mut self, input: &[u8], output: &mut [u8]) -> Outcome {
        let profile = TeardownProfile(teardown_hca_in::profile.get32(input) as u16);
        match profile {
            TeardownProfile::GRACEFUL_CLOSE => {
                if self.life != Life::Initialized {
                    return Err(Refusal::new(CmdStatus::BAD_SYS_STATE, "", "before INIT_HCA"));
                }
                let census = self.objects.census();
                if census.total() != 0 {
                    self.log.warn(Subject::Device, "", format!("TEARDOWN_HCA with objects left: {census}"));
                }
                self.deinitialize();
            }
            TeardownProfile::FORCE_CLOSE => self.deinitialize(),
            // The work is done when nic_interface is written.
            TeardownProfile::PREPARE_FAST_TEARDOWN => {}
            _ => return Err(Refusal::param("teardown_hca_in.profile", format!("{profile}"))),
        }
        teardown_hca_out::state.set(output, 0u8);
        Ok(())
    }

    pub(super) fn query_adapter(&self, output: &mut [u8]) -> Outcome {
        let block = query_adapter_out::query_adapter_struct.of_mut(output);
        query_adapter_param_block::ieee_vendor_id.set(block, 0x02c9u32);
        query_adapter_param_block::vsd_vendor_id.set(block, u32::from(crate::pci::VENDOR_ID));
        let psid = query_adapter_param_block::vsd_contd_psid.of_mut(block);
        for (to, from) in psid.iter_mut().zip(self.profile.psid.bytes()) {
            *to = from;
        }
        Ok(())
    }

    pub(super) fn set_driver_version(&mut self, input: &[u8]) -> Outcome {
        let text = set_driver_version_in::driver_version.of(input);
        let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
        let text = text.get(..end).unwrap_or(text);
        if self.profile.strictness == Strictness::Strict && !text.iter().all(|b| (0x20..0x7f).contains(b)) {
            return Err(Refusal::param("set_driver_version_in.driver_version", "not printable text"));
        }
        let text = String::from_utf8_lossy(text).into_owned();
        self.log.info(Subject::Device, format!("driver {text}"));
        Ok(())
    }
}
