//! Data through the card to itself: a reliable connection of a QP with itself, inside the card and
//! by the port's own address.

use super::halves::{self, HALF};
use super::report::{Out, step};
use super::stage::Stage;
use super::steps::wait;
use driver_mlx::{
    Access, Base, Completion, Cq, DmaBuffer, Duration, Error, EthernetLink, Gid, Grh, Hca, InfiniBandLink,
    InitParams, Link, MemoryRegion, Mtu, Path, Pd, Platform, PortState, PortType, Psn, Qp, QpConfig,
    RtrParams, RtsParams, SendFlags, SendOp, Sge,
};

/// How long one operation may take.
const LIMIT: Duration = Duration::from_secs(5);

/// MTU inside the card, as drivers of others use there.
const INSIDE_MTU: Mtu = Mtu::B1024;

/// Moves data inside the card, without address and link. Returns whether the card offers that.
pub(super) fn inside<P: Platform>(
    hca: &mut Hca<'_, P>,
    pd: Pd,
    cq: &mut Cq<P::Bar>,
    out: Out<'_>,
) -> Result<bool, Stage> {
    let (began, caps) = (hca.now(), *hca.caps());
    // InfiniBand cards are asked: they may offer more than they announce.
    let asked = caps.force_loopback || caps.port_type == PortType::InfiniBand;
    let moved =
        if asked { through_itself(hca, pd, cq, "inside", (Path::Loopback, INSIDE_MTU), out) } else { Ok(()) };
    match moved {
        Ok(()) if asked => return Ok(true),
        Err(Stage::Hca(Error::Command(_))) if !caps.force_loopback => {}
        moved => moved?,
    }
    step(out, "inside", began, hca.now(), format_args!("not offered"));
    Ok(false)
}

/// Moves data to the port's own address.
pub(super) fn by_port<P: Platform>(
    hca: &mut Hca<'_, P>,
    pd: Pd,
    cq: &mut Cq<P::Bar>,
    port: &PortState,
    out: Out<'_>,
) -> Result<(), Stage> {
    let path = match &port.link {
        Link::InfiniBand(link) => own_lid(hca, link)?,
        Link::Ethernet(link) => own_mac(hca, link)?,
    };
    through_itself(hca, pd, cq, "port", (path, port.mtu), out)?;
    if let Link::Ethernet(link) = &port.link {
        hca.remove_roce_address(Gid::link_local(link.mac), None)?;
    }
    Ok(())
}

fn own_lid<P: Platform>(hca: &mut Hca<'_, P>, link: &InfiniBandLink) -> Result<Path, Stage> {
    let grh = if link.grh_required {
        let dgid = hca.gid(0)?;
        Some(Grh { dgid, source_gid_index: 0, flow_label: 0, hop_limit: 1, traffic_class: 0 })
    } else {
        None
    };
    Ok(Path::InfiniBand { dlid: link.lid, sl: link.sm_sl, src_path_bits: 0, static_rate: 0, grh })
}

fn own_mac<P: Platform>(hca: &mut Hca<'_, P>, link: &EthernetLink) -> Result<Path, Stage> {
    if hca.caps().roce.is_none() {
        return Err(Stage::Missing("RoCE is switched off"));
    }
    let dgid = Gid::link_local(link.mac);
    let source_gid_index = hca.add_roce_address(dgid, None)?;
    let grh = Grh { dgid, source_gid_index, flow_label: 0, hop_limit: 1, traffic_class: 0 };
    Ok(Path::Roce { dmac: link.mac, priority: 0, grh })
}

/// Sends, writes, reads, and compares.
fn through_itself<P: Platform>(
    hca: &mut Hca<'_, P>,
    pd: Pd,
    cq: &mut Cq<P::Bar>,
    by: &str,
    path: (Path, Mtu),
    out: Out<'_>,
) -> Result<(), Stage> {
    let began = hca.now();
    let memory = hca.alloc(2 * HALF, 4096)?;
    let rights = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
    let key = hca.register(pd, &memory, rights, Base::Virtual)?;
    let mut qp = hca.create_qp(&QpConfig::rc(pd, cq.number()))?;
    if let Err(stage) = connect(hca, &mut qp, path, rights) {
        release(hca, qp, key, memory)?;
        return Err(stage);
    }
    step(out, "self_connection", began, hca.now(), format_args!("by={by} qpn={}", qp.number()));
    let moved = ["send", "rdma_write", "rdma_read"].into_iter().enumerate().try_for_each(|(round, name)| {
        let began = hca.now();
        let pattern = |at: usize| (at as u8).wrapping_mul(31).wrapping_add(round as u8 + 1);
        halves::fill(&memory, pattern)?;
        operate(hca, cq, &mut qp, &key, name)?;
        halves::compare(&memory, pattern)?;
        step(out, name, began, hca.now(), format_args!("by={by} bytes={HALF}"));
        Ok(())
    });
    // The error of the test comes first.
    let released = release(hca, qp, key, memory);
    moved.and(released)
}

fn release<P: Platform>(
    hca: &mut Hca<'_, P>,
    qp: Qp<P::Bar>,
    key: MemoryRegion,
    memory: DmaBuffer,
) -> Result<(), Stage> {
    hca.destroy_qp(qp)?;
    hca.deregister(key).map_err(Error::from)?;
    hca.free(memory).map_err(Error::from)?;
    Ok(())
}

fn connect<P: Platform>(
    hca: &mut Hca<'_, P>,
    qp: &mut Qp<P::Bar>,
    (path, mtu): (Path, Mtu),
    rights: Access,
) -> Result<(), Stage> {
    hca.modify_to_init(qp, &InitParams { port: 1, pkey_index: 0, access: rights })?;
    let rtr = RtrParams {
        path,
        mtu,
        remote_qpn: qp.number(),
        rq_psn: Psn::new(7),
        responder_resources: 1,
        min_rnr_timer: 12,
    };
    hca.modify_to_rtr(qp, &rtr)?;
    let rts =
        RtsParams { sq_psn: Psn::new(7), ack_timeout: 14, retry_count: 7, rnr_retry: 7, initiator_depth: 1 };
    hca.modify_to_rts(qp, &rts)?;
    Ok(())
}

/// Moves the first half of the memory to the second.
fn operate<P: Platform>(
    hca: &mut Hca<'_, P>,
    cq: &mut Cq<P::Bar>,
    qp: &mut Qp<P::Bar>,
    key: &MemoryRegion,
    name: &str,
) -> Result<(), Stage> {
    let half = |index: u64| Sge {
        address: key.address() + index * HALF as u64,
        length: HALF as u32,
        lkey: key.lkey(),
    };
    let (raddr, rkey) = (key.address(), key.rkey());
    let (op, local, wanted) = match name {
        "send" => (SendOp::Send, half(0), 2),
        "rdma_write" => (SendOp::Write { raddr: raddr + HALF as u64, rkey }, half(0), 1),
        _ => (SendOp::Read { raddr, rkey }, half(1), 1),
    };
    let full = |_| Stage::Wrong("a queue takes no request");
    if wanted == 2 {
        qp.post_recv(&[half(1)], 1).map_err(full)?;
    }
    let doorbell = qp.post_send(op, &[local], 2, SendFlags::SIGNALED).map_err(full)?;
    qp.ring(doorbell);
    let mut done = 0;
    wait(hca, LIMIT, |hca| {
        let _ = hca.poll(hca.now());
        while let Some(retired) =
            cq.poll(|cqe| qp.retire(cqe)).map_err(|_| Stage::Wrong("a completion makes no sense"))?
        {
            match retired {
                Some(Completion::Sent(_) | Completion::Received(_)) => done += 1,
                _ => return Err(Stage::Wrong("a request to the own port failed")),
            }
        }
        Ok((done == wanted).then_some(()))
    })?
    .ok_or(Stage::Wrong("a request to the own port did not complete in 5 s"))
}
