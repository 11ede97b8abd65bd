//! Access registers of the card: what tools ask for before they do anything (PRM, software context formats).

use super::refusal::{Outcome, Refusal};
use super::register;
use crate::device::Device;
use mlx5_prm::Field;
use mlx5_prm::management::*;
use mlx5_prm::registers::*;

/// The one component: firmware (`mcqs_reg.identifier`).
const BOOT_IMAGE: u32 = 1;
/// It is there.
const PRESENT: u32 = 1;
/// Bytes of the image as it could be in the flash memory.
const IMAGE_SIZE: u32 = 16 << 20;
/// Kinds of what MCQI knows: capabilities, version, activation.
const CAPABILITIES: u32 = 0;
const VERSION: u32 = 1;
const ACTIVATION: u32 = 5;
/// Kinds of texts: name, description.
const MODEL_NAME: u32 = 1;
const MODEL_DESCRIPTION: u32 = 2;
/// `mfrl_reg.reset_level`: firmware starts anew when the machine is switched off and on.
const COLD_RESET: u32 = 1 << 6;
/// First sensor of the port's module: there is none in it.
const MODULE_SENSORS: u32 = 64;
/// 45 degrees Celsius, in units of 0.125; and the warning threshold.
const TEMPERATURE: u32 = 45 * 8;
const HOT: u32 = 105 * 8;
/// Slot power suffices, in Watt.
const POWER: u32 = 25;

fn put_text(place: &mut [u8], text: &str) {
    for (to, from) in place.iter_mut().zip(text.bytes()) {
        *to = from;
    }
}

impl Device {
    pub(super) fn mcam(&self, register: &mut [u8]) -> Outcome {
        self.which_registers(register, [0x9000, 0x9080, 0x9100]);
        Ok(())
    }

    pub(super) fn pcam(&self, register: &mut [u8]) -> Outcome {
        self.which_registers(register, [0x5000, 0x5080, 0x5100]);
        Ok(())
    }

    /// Nothing is under way, and nothing can be begun: that would be written.
    pub(super) fn mcc(&self, register: &mut [u8]) -> Outcome {
        register.fill(0);
        Ok(())
    }

    pub(super) fn mcda(&self, _: &mut [u8]) -> Outcome {
        Err(Refusal::param("mcda_reg.update_handle", "no component is being changed"))
    }

    pub(super) fn mtcap(&self, register: &mut [u8]) -> Outcome {
        register.fill(0);
        mtcap_reg::sensor_count.set(register, 1u8);
        mtcap_reg::internal_sensor_count.set(register, 1u8);
        mtcap_reg::sensor_map.set(register, 1u8);
        Ok(())
    }

    pub(super) fn mfrl(&self, register: &mut [u8]) -> Outcome {
        register.fill(0);
        mfrl_reg::reset_level.set(register, COLD_RESET);
        mfrl_reg::reset_type.set(register, 1u8);
        Ok(())
    }

    pub(super) fn dtor(&self, register: &mut [u8]) -> Outcome {
        for (offset, word) in &self.profile.habits.default_timeouts {
            Field::bits(*offset as u32, 31, 0).set(register, *word);
        }
        Ok(())
    }

    pub(super) fn mgir(&self, register: &mut [u8]) -> Outcome {
        use mgir_reg as r;
        register.fill(0);
        let card = self.profile.card;
        let (major, minor, sub_minor) = card.firmware;
        let mac = self.profile.node_guid;
        for (field, value) in [
            (r::device_id, u32::from(card.device_id)),
            (r::hw_dev_id, card.hardware_id),
            (r::technology, u32::from(card.technology)),
            (r::num_ports, 1),
            (r::manufacturing_base_mac_47_32, (mac >> 48) as u32),
            (r::manufacturing_base_mac_31_0, ((mac >> 40 & 0xff) as u32) << 24 | mac as u32 & 0x00ff_ffff),
            (r::uptime, (self.log.now() / 1_000_000_000) as u32),
            (r::major, major & 0xff),
            (r::minor, minor & 0xff),
            // It needs more than eight bits: what is new looks at the field below.
            (r::sub_minor, sub_minor & 0xff),
            (r::month, 0x06),
            (r::day, 0x01),
            (r::year, 0x2023),
            (r::extended_major, major),
            (r::extended_minor, minor),
            (r::extended_sub_minor, sub_minor),
        ] {
            field.set(register, value);
        }
        put_text(r::psid.of_mut(register), &self.profile.psid);
        Ok(())
    }

    /// Sets a bit for each register of the group that exists. The highest numbers come first.
    fn which_registers(&self, register: &mut [u8], groups: [u16; 3]) {
        let group = capability_reg::access_reg_group.get32(register) as usize;
        let mask = capability_reg::access_reg_cap_mask.of_mut(register);
        mask.fill(0);
        let Some(first) = groups.get(group) else { return };
        for known in register::all(&self.profile) {
            let Some(bit) = known.id.0.checked_sub(*first).filter(|bit| *bit < 128) else { continue };
            if let Some(byte) = mask.get_mut(15 - usize::from(bit / 8)) {
                *byte |= 1 << (bit % 8);
            }
        }
        capability_reg::feature_cap_mask.of_mut(register).fill(0);
    }

    pub(super) fn mcqi(&self, register: &mut [u8]) -> Outcome {
        only_component(mcqi_reg::component_index.get32(register))?;
        let mut info = [0; mcqi_version::SIZE];
        let (major, minor, sub_minor) = self.profile.card.firmware;
        let kind = mcqi_reg::info_type.get32(register);
        let size = match kind {
            CAPABILITIES => {
                use mcqi_cap as c;
                c::supported_info_bitmask
                    .set(&mut info, 1u32 << CAPABILITIES | 1 << VERSION | 1 << ACTIVATION);
                c::max_component_size.set(&mut info, IMAGE_SIZE);
                c::log_mcda_word_size.set(&mut info, 2u8);
                c::mcda_max_write_size.set(&mut info, 128u8);
                c::match_psid.set(&mut info, true);
                c::SIZE
            }
            VERSION => {
                use mcqi_version as v;
                let text = format!("{major:02}.{minor:02}.{sub_minor:04}");
                v::version.set(&mut info, major << 24 | minor << 16 | sub_minor & 0xffff);
                v::version_string_length.set(&mut info, text.len() as u32 + 1);
                put_text(v::version_string.of_mut(&mut info), &text);
                v::SIZE
            }
            ACTIVATION => {
                mcqi_activation_method::pending_fw_reset.set(&mut info, true);
                4
            }
            other => return Err(Refusal::param("mcqi_reg.info_type", format!("{other} is not supported"))),
        };
        let offset = mcqi_reg::offset.get32(register) as usize;
        let asked = mcqi_reg::data_size.get32(register) as usize;
        let Some(rest) = info.get(..size).and_then(|info| info.get(offset..)) else {
            return Err(Refusal::param("mcqi_reg.offset", format!("{offset:#x}, of {size:#x}")));
        };
        let part = rest.get(..asked).unwrap_or(rest);
        mcqi_reg::info_size.set(register, size as u32);
        mcqi_reg::data_size.set(register, part.len() as u32);
        let data = mcqi_reg::data.of_mut(register);
        data.fill(0);
        if let Some(to) = data.get_mut(..part.len()) {
            to.copy_from_slice(part);
        }
        Ok(())
    }

    /// A part of a text, eight bytes at a time.
    pub(super) fn mqis(&self, register: &mut [u8]) -> Outcome {
        let text = match mqis_reg::info_type.get32(register) {
            MODEL_NAME => self.profile.card.name.to_uppercase(),
            MODEL_DESCRIPTION => format!("emulated {}", self.profile.card.title),
            _ => String::new(),
        };
        let offset = mqis_reg::read_offset.get32(register) as usize;
        let asked = mqis_reg::read_length.get32(register) as usize;
        let rest = text.as_bytes().get(offset..).unwrap_or_default();
        let place = mqis_reg::info_string.of_mut(register);
        place.fill(0);
        let len = rest.len().min(asked).min(place.len());
        for (to, from) in place.iter_mut().zip(rest.iter().take(len)) {
            *to = *from;
        }
        mqis_reg::info_length.set(register, text.len() as u32);
        mqis_reg::read_length.set(register, len as u32);
        Ok(())
    }

    pub(super) fn mpein(&self, register: &mut [u8]) -> Outcome {
        use mpein_reg as r;
        register.fill(0);
        let (generation, lanes) = self.profile.card.pci_link;
        // A bit for each speed: 2.5, 5, 8 GT/s, then one left out, 16, 32.
        let bit = |generation: u8| 1u32 << (u32::from(generation) - 1 + u32::from(generation > 3));
        let speeds = (1..=generation).fold(0, |speeds, generation| speeds | bit(generation));
        for (field, value) in [
            (r::link_width_enabled, u32::from(lanes)),
            (r::link_speed_enabled, speeds),
            (r::link_width_active, u32::from(lanes)),
            (r::link_speed_active, bit(generation)),
            (r::num_of_pfs, 1),
            // 512 bytes each.
            (r::max_read_request_size, 2),
            (r::max_payload_size, 2),
            (r::pwr_status, 1),
            (r::pci_power, POWER),
        ] {
            field.set(register, value);
        }
        Ok(())
    }

    pub(super) fn mcqs(&self, register: &mut [u8]) -> Outcome {
        only_component(mcqs_reg::component_index.get32(register))?;
        register.fill(0);
        mcqs_reg::last_index_flag.set(register, true);
        mcqs_reg::identifier.set(register, BOOT_IMAGE);
        mcqs_reg::component_status.set(register, PRESENT);
        Ok(())
    }

    pub(super) fn mtmp(&self, register: &mut [u8]) -> Outcome {
        let sensor = mtmp_reg::sensor_index.get32(register);
        if sensor == MODULE_SENSORS {
            if let Some(answer) = register.get_mut(4..) {
                answer.fill(0);
            }
            return Ok(());
        }
        if sensor != 0 {
            return Err(Refusal::param("mtmp_reg.sensor_index", format!("{sensor}: there is one sensor")));
        }
        register.fill(0);
        mtmp_reg::temperature.set(register, TEMPERATURE);
        mtmp_reg::max_temperature.set(register, TEMPERATURE);
        mtmp_reg::temperature_threshold_hi.set(register, HOT);
        mtmp_reg::temperature_threshold_lo.set(register, HOT - 40);
        put_text(mtmp_reg::sensor_name.of_mut(register), "asic");
        Ok(())
    }
}

fn only_component(index: u32) -> Outcome {
    if index == 0 {
        return Ok(());
    }
    Err(Refusal::param("component_index", format!("{index}: there is one component")))
}
