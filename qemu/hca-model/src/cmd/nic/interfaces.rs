//! TIS, TIR and RQT commands: what queues send and receive through.

use crate::cmd::refusal::{Outcome, Refusal};
use crate::device::Device;
use crate::object::nic::{Hash, Rqt, Target, Tir, Tis};
use mlx5_prm::Field;
use mlx5_prm::caps::cmd_hca_cap as cap;
use mlx5_prm::commands::*;
use mlx5_prm::contexts::{rqtc, rx_hash_field_select, tirc, tisc};
use mlx5_prm::value::{HashFields, RxHash, TirDisp};

/// Entries of `rqtc.rq_num` in an input or output of the RQT commands.
const RQ_NUM: usize = create_rqt_in::rqt_context.offset + rqtc::rq_num.offset;
/// Number of a receive queue in its entry.
const RQN: Field = Field::bits(0, 23, 0);

impl Device {
    /// Checks that a transport domain exists. Domain 0 stands for none: programs that use DevX set none.
    fn check_transport_domain(&self, field: &str, number: u32) -> Outcome {
        if number == 0 || self.objects.transport_domains.contains(number) {
            return Ok(());
        }
        Err(Refusal::missing(field, number))
    }

    pub(in crate::cmd) fn create_tis(&mut self, input: &[u8], output: &mut [u8]) -> Outcome {
        let context = create_tis_in::ctx.of(input);
        if tisc::tls_en.is_set(context) {
            return Err(Refusal::param("tisc.tls_en", "the capability is off"));
        }
        let tis = Tis { transport_domain: tisc::transport_domain.get32(context), context: context.to_vec() };
        self.check_transport_domain("tisc.transport_domain", tis.transport_domain)?;
        let pd = tisc::pd.get32(context);
        if pd != 0 && !self.objects.pds.contains(pd) {
            return Err(Refusal::missing("tisc.pd", pd));
        }
        let number = self.objects.nic.tises.insert(|_| tis).ok_or_else(|| Refusal::full("TISs"))?;
        create_tis_out::tisn.set(output, number);
        Ok(())
    }

    pub(in crate::cmd) fn modify_tis(&mut self, input: &[u8]) -> Outcome {
        let number = modify_tis_in::tisn.get32(input);
        let Some(tis) = self.objects.nic.tises.get_mut(number) else {
            return Err(Refusal::missing("modify_tis_in.tisn", number));
        };
        let (select, context) = (modify_tis_in::bitmask.of(input), modify_tis_in::ctx.of(input));
        if modify_tis_bitmask::prio.is_set(select) {
            tisc::prio.set(&mut tis.context, tisc::prio.get(context));
        }
        Ok(())
    }

    pub(in crate::cmd) fn destroy_tis(&mut self, input: &[u8]) -> Outcome {
        let (field, number) = ("destroy_tis_in.tisn", destroy_tis_in::tisn.get32(input));
        self.charge_scan();
        if let Some(sqn) = self.objects.nic.user_of_tis(number) {
            return Err(Refusal::busy(field, format!("used by SQ {sqn:#x}")));
        }
        let removed = self.objects.nic.tises.remove(number);
        removed.map(drop).ok_or_else(|| Refusal::missing(field, number))
    }

    pub(in crate::cmd) fn query_tis(&mut self, input: &[u8], output: &mut [u8]) -> Outcome {
        let number = query_tis_in::tisn.get32(input);
        let Some(tis) = self.objects.nic.tises.get(number) else {
            return Err(Refusal::missing("query_tis_in.tisn", number));
        };
        query_tis_out::tis_context.of_mut(output).copy_from_slice(&tis.context);
        Ok(())
    }

    pub(in crate::cmd) fn create_tir(&mut self, input: &[u8], output: &mut [u8]) -> Outcome {
        let context = create_tir_in::ctx.of(input);
        for (field, name) in [
            (tirc::tls_en, "tirc.tls_en"),
            (tirc::packet_merge_mask, "tirc.packet_merge_mask"),
            (tirc::tunneled_offload_en, "tirc.tunneled_offload_en"),
        ] {
            if field.is_set(context) {
                return Err(Refusal::param(name, "the capability is off"));
            }
        }
        let nic = &self.objects.nic;
        let target = match TirDisp(tirc::disp_type.get32(context) as u8) {
            TirDisp::DIRECT => match tirc::inline_rqn.get32(context) {
                rqn if nic.rqs.contains(rqn) => Target::Direct(rqn),
                rqn => return Err(Refusal::missing("tirc.inline_rqn", rqn)),
            },
            TirDisp::INDIRECT => match tirc::indirect_table.get32(context) {
                rqtn if nic.rqts.contains(rqtn) => Target::Indirect(rqtn),
                rqtn => return Err(Refusal::missing("tirc.indirect_table", rqtn)),
            },
            other => return Err(Refusal::param("tirc.disp_type", format!("{other}"))),
        };
        let tir = Tir {
            transport_domain: tirc::transport_domain.get32(context),
            target,
            hash: hash(context)?,
            context: context.to_vec(),
        };
        self.check_transport_domain("tirc.transport_domain", tir.transport_domain)?;
        let number = self.objects.nic.tirs.insert(|_| tir).ok_or_else(|| Refusal::full("TIRs"))?;
        create_tir_out::tirn.set(output, number);
        Ok(())
    }

    pub(in crate::cmd) fn modify_tir(&mut self, input: &[u8]) -> Outcome {
        let number = modify_tir_in::tirn.get32(input);
        let (select, context) = (modify_tir_in::bitmask.of(input), modify_tir_in::ctx.of(input));
        if modify_tir_bitmask::packet_merge.is_set(select) {
            return Err(Refusal::param("modify_tir_bitmask.packet_merge", "the capability is off"));
        }
        let new = if modify_tir_bitmask::hash.is_set(select) { Some(hash(context)?) } else { None };
        let Some(tir) = self.objects.nic.tirs.get_mut(number) else {
            return Err(Refusal::missing("modify_tir_in.tirn", number));
        };
        if modify_tir_bitmask::self_lb_en.is_set(select) {
            tirc::self_lb_block.set(&mut tir.context, tirc::self_lb_block.get(context));
        }
        if let Some(new) = new {
            tir.hash = new;
            for field in [tirc::rx_hash_symmetric, tirc::rx_hash_fn] {
                field.set(&mut tir.context, field.get(context));
            }
            for part in [
                tirc::rx_hash_toeplitz_key,
                tirc::rx_hash_field_selector_outer,
                tirc::rx_hash_field_selector_inner,
            ] {
                part.of_mut(&mut tir.context).copy_from_slice(part.of(context));
            }
        }
        Ok(())
    }

    pub(in crate::cmd) fn destroy_tir(&mut self, input: &[u8]) -> Outcome {
        let (field, number) = ("destroy_tir_in.tirn", destroy_tir_in::tirn.get32(input));
        self.meter.charge(self.objects.nic.steering.entries() as u64);
        if let Some(table) = self.objects.nic.steering.user_of_tir(number) {
            return Err(Refusal::busy(field, format!("flow table {table:#x} leads there")));
        }
        let removed = self.objects.nic.tirs.remove(number);
        removed.map(drop).ok_or_else(|| Refusal::missing(field, number))
    }

    pub(in crate::cmd) fn query_tir(&mut self, input: &[u8], output: &mut [u8]) -> Outcome {
        let number = query_tir_in::tirn.get32(input);
        let Some(tir) = self.objects.nic.tirs.get(number) else {
            return Err(Refusal::missing("query_tir_in.tirn", number));
        };
        query_tir_out::tir_context.of_mut(output).copy_from_slice(&tir.context);
        Ok(())
    }

    /// The list of a table of receive queues, of which there are `max_size` at most.
    fn rq_list(&self, input: &[u8], context: &[u8], max_size: u32) -> Result<Vec<u32>, Refusal> {
        let (list_type, count) = (rqtc::list_q_type.get32(context), rqtc::rqt_actual_size.get32(context));
        if list_type != 0 {
            return Err(Refusal::param("rqtc.list_q_type", format!("{list_type}")));
        }
        let entries = input.get(RQ_NUM..).unwrap_or_default().as_chunks::<4>().0;
        if count == 0 || count > max_size || count as usize > entries.len() {
            let text = format!("{count}, of at most {max_size} with {} in the input", entries.len());
            return Err(Refusal::param("rqtc.rqt_actual_size", text));
        }
        let list: Vec<u32> = entries.iter().take(count as usize).map(|entry| RQN.get32(entry)).collect();
        match list.iter().find(|rqn| !self.objects.nic.rqs.contains(**rqn)) {
            Some(rqn) => Err(Refusal::missing("rqtc.rq_num", *rqn)),
            None => Ok(list),
        }
    }

    pub(in crate::cmd) fn create_rqt(&mut self, input: &[u8], output: &mut [u8]) -> Outcome {
        let context = create_rqt_in::rqt_context.of(input);
        let (max_size, most) =
            (rqtc::rqt_max_size.get32(context), 1 << self.caps.current(cap::log_max_rqt_size));
        if max_size == 0 || max_size > most {
            return Err(Refusal::param("rqtc.rqt_max_size", format!("{max_size}, at most {most}")));
        }
        let rqt = Rqt { max_size, list: self.rq_list(input, context, max_size)? };
        let memory = rqt.memory();
        self.hold(memory)?;
        let Some(number) = self.objects.nic.rqts.insert(|_| rqt) else {
            self.budget.release(memory);
            return Err(Refusal::full("tables of receive queues"));
        };
        create_rqt_out::rqtn.set(output, number);
        Ok(())
    }

    pub(in crate::cmd) fn modify_rqt(&mut self, input: &[u8]) -> Outcome {
        let (field, number) = ("modify_rqt_in.rqtn", modify_rqt_in::rqtn.get32(input));
        if !rqt_bitmask::rqn_list.is_set(modify_rqt_in::bitmask.of(input)) {
            return Ok(());
        }
        let context = modify_rqt_in::ctx.of(input);
        let Some(rqt) = self.objects.nic.rqts.get(number) else {
            return Err(Refusal::missing(field, number));
        };
        let list = self.rq_list(input, context, rqt.max_size)?;
        if let Some(rqt) = self.objects.nic.rqts.get_mut(number) {
            rqt.list = list;
        }
        Ok(())
    }

    pub(in crate::cmd) fn destroy_rqt(&mut self, input: &[u8]) -> Outcome {
        let (field, number) = ("destroy_rqt_in.rqtn", destroy_rqt_in::rqtn.get32(input));
        self.charge_scan();
        if let Some(tirn) = self.objects.nic.user_of_rqt(number) {
            return Err(Refusal::busy(field, format!("used by TIR {tirn:#x}")));
        }
        let removed = self.objects.nic.rqts.remove(number).ok_or_else(|| Refusal::missing(field, number))?;
        self.budget.release(removed.memory());
        Ok(())
    }

    pub(in crate::cmd) fn query_rqt(&mut self, input: &[u8], output: &mut Vec<u8>) -> Outcome {
        let number = query_rqt_in::rqtn.get32(input);
        let Some(rqt) = self.objects.nic.rqts.get(number) else {
            return Err(Refusal::missing("query_rqt_in.rqtn", number));
        };
        let context = query_rqt_out::rqt_context.of_mut(output);
        rqtc::rqt_max_size.set(context, rqt.max_size);
        rqtc::rqt_actual_size.set(context, rqt.list.len() as u32);
        output.truncate(RQ_NUM);
        output.extend(rqt.list.iter().flat_map(|rqn| rqn.to_be_bytes()));
        Ok(())
    }
}

/// How a TIR hashes, by its context.
fn hash(context: &[u8]) -> Result<Hash, Refusal> {
    let function = RxHash(tirc::rx_hash_fn.get32(context) as u8);
    if !RxHash::ALL.contains(&function) {
        return Err(Refusal::param("tirc.rx_hash_fn", format!("{function}")));
    }
    let outer = tirc::rx_hash_field_selector_outer.of(context);
    let fields = rx_hash_field_select::selected_fields.get32(outer);
    Ok(Hash {
        function,
        symmetric: tirc::rx_hash_symmetric.is_set(context),
        key: tirc::rx_hash_toeplitz_key.of(context).first_chunk().copied().unwrap_or([0; 40]),
        fields: HashFields::from_bits_truncate(fields),
    })
}
