//! Reports in JSON.

use crate::link::CableState;
use crate::server::{Activity, HcaState, Summary};
use hca_model::Census;
use hca_model::log::{Entry, Level};
use hca_model::recorder::{self, Failures, PeerAddress, QpRecord};
use rdma_fabric::counters::FabricCounters;
use rdma_fabric::ethernet::{self, SwitchCounters};
use rdma_fabric::faults::Faults;
use rdma_fabric::infiniband::Flow;
use rdma_fabric::infiniband::PortCounters;
use rdma_fabric::losses::Losses;
use rdma_fabric::medium::LinkLayer;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Returns the packet counters of the fabric.
#[must_use]
pub fn fabric(counters: &FabricCounters) -> Value {
    json!({
        "sent": counters.sent,
        "delivered": counters.delivered,
        "delivered_bytes": counters.delivered_bytes,
        "dropped": counters.dropped,
        "duplicated": counters.duplicated,
        "reordered": counters.reordered,
        "corrupted": counters.corrupted,
        "link_down": counters.link_down,
        "cuts": counters.cuts,
        "no_route": counters.no_route,
        "refused": counters.refused,
        "overflow": counters.overflow,
        "malformed": counters.malformed,
    })
}

fn port(counters: &PortCounters) -> Value {
    json!({
        "xmit_data": counters.xmit_data,
        "rcv_data": counters.rcv_data,
        "xmit_packets": counters.xmit_packets,
        "rcv_packets": counters.rcv_packets,
        "multicast_xmit_packets": counters.multicast_xmit_packets,
        "multicast_rcv_packets": counters.multicast_rcv_packets,
        "rcv_errors": counters.rcv_errors,
        "xmit_discards": counters.xmit_discards,
        "vl15_dropped": counters.vl15_dropped,
        "link_downed": counters.link_downed,
        "xmit_wait": counters.xmit_wait,
    })
}

fn census(census: &Census) -> Value {
    json!({
        "uars": census.uars,
        "eqs": census.eqs,
        "cqs": census.cqs,
        "pds": census.pds,
        "mkeys": census.mkeys,
        "qps": census.qps,
        "srqs": census.srqs,
        "xrcds": census.xrcds,
        "transport_domains": census.transport_domains,
        "q_counters": census.q_counters,
        "multicast": census.multicast,
        "uctxs": census.uctxs,
        "umems": census.umems,
    })
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

fn qp_failures(failures: &Failures) -> Value {
    let last = failures.last().map(
        |failure| json!({ "seconds": seconds(failure.at), "qpn": failure.qpn, "reason": failure.reason }),
    );
    json!({ "total": failures.total(), "last": last.collect::<Vec<_>>() })
}

/// Returns a QP in short.
#[must_use]
pub fn qp(record: &QpRecord) -> Value {
    let peer = record.peer.map(|(address, qpn)| match address {
        PeerAddress::Lid(lid) => json!({ "lid": lid, "qpn": qpn }),
        PeerAddress::Gid(gid) => json!({ "gid": gid.to_string(), "qpn": qpn }),
    });
    json!({
        "qpn": record.qpn,
        "service": record.service.meaning(),
        "state": record.state.meaning(),
        "peer": peer,
        "failure": record.failure,
    })
}

/// Returns a QP with its last events, as values and as the lines of a table.
#[must_use]
pub fn qp_events(record: &QpRecord) -> Value {
    let event = |entry: &recorder::Entry| {
        json!({
            "seconds": seconds(entry.at),
            "event": entry.event.name(),
            "details": entry.event.to_string(),
            "times": entry.times,
        })
    };
    let mut value = qp(record);
    value["events"] = record.entries.iter().map(event).collect();
    value["table"] = record.table().lines().collect();
    value
}

/// Returns the state of an HCA.
#[must_use]
pub fn hca(state: &HcaState) -> Value {
    json!({
        "connected": state.connected,
        "killed": state.killed,
        "failure": state.failure,
        "warm": state.warm,
        "resets": state.resets,
        "cable": state.cable,
        "link_up": state.link_up,
        "active": state.active,
        "lid": state.lid,
        "pkeys": state.pkeys.iter().map(|pkey| format!("{pkey:#06x}")).collect::<Vec<_>>(),
        "port_guid": format!("{:#018x}", state.port_guid),
        "refusals": state.refusals,
        "retransmitted": state.retransmitted,
        "qp_failures": qp_failures(&state.qp_failures),
        "objects": census(&state.census),
        "port": port(&state.counters),
        "work": {
            "reads": state.work.reads,
            "messages": state.work.messages,
            "interrupts": state.work.interrupts,
            "nanoseconds": state.work.nanoseconds,
        },
    })
}

/// Returns the losses of an InfiniBand flow.
#[must_use]
pub fn flow((flow, losses): (&Flow, &Losses)) -> Value {
    let mut value = lost(losses);
    value["source_lid"] = json!(flow.source_lid);
    value["dest_lid"] = json!(flow.dest_lid);
    value["dest_qpn"] = json!(flow.dest_qpn);
    value["kind"] = json!(format!("{:?}", flow.kind));
    value
}

/// Returns the losses of an Ethernet flow.
#[must_use]
pub fn ethernet_flow((flow, losses): (&ethernet::Flow, &Losses)) -> Value {
    let mut value = lost(losses);
    value["source"] = json!(flow.source.to_string());
    value["destination"] = json!(flow.destination.to_string());
    value["dest_qpn"] = json!(flow.dest_qpn);
    value["kind"] = json!(format!("{:?}", flow.kind));
    value
}

fn lost(losses: &Losses) -> Value {
    json!({
        "dropped": losses.dropped,
        "duplicated": losses.duplicated,
        "corrupted": losses.corrupted,
        "held": losses.held,
        "link_down": losses.link_down,
        "overflow": losses.overflow,
        "no_route": losses.no_route,
        "refused": losses.refused,
    })
}

/// Returns the frame counters of the Ethernet switch.
#[must_use]
pub fn ethernet(counters: &FabricCounters, switch: SwitchCounters) -> Value {
    let mut value = fabric(counters);
    value["flooded"] = json!(switch.flooded);
    value["filtered"] = json!(switch.filtered);
    value["marked"] = json!(switch.marked);
    value
}

/// Returns the state of a cable to a remote HCA.
#[must_use]
pub fn cable(state: &CableState) -> Value {
    json!({
        "port_guid": format!("{:#018x}", state.port_guid),
        "link_layer": match state.layer {
            LinkLayer::InfiniBand => "InfiniBand",
            LinkLayer::Ethernet => "Ethernet",
        },
        "switch_port": state.switch_port,
        "up": state.up,
    })
}

/// Returns the activity of the server's thread.
#[must_use]
pub fn activity(activity: &Activity) -> Value {
    json!({ "wakeups": activity.wakeups, "turns": activity.turns, "visits": activity.visits })
}

/// Returns the complete report.
#[must_use]
pub fn whole(summary: &Summary, sockets: &[PathBuf], seed: u64, faults: &Faults) -> Value {
    let hcas = summary.hcas.iter().zip(sockets).map(|(state, socket)| {
        let mut value = hca(state);
        if let Some(members) = value.as_object_mut() {
            members.insert("socket".into(), socket.to_string_lossy().into());
        }
        value
    });
    let mut switch = ethernet(&summary.ethernet.counters, summary.ethernet.switch);
    switch["losses"] = summary.ethernet.losses.iter().map(ethernet_flow).collect();
    json!({
        "server": concat!("hca-serve ", env!("CARGO_PKG_VERSION")),
        "seed": seed,
        "faults": faults.to_string(),
        "seconds": summary.seconds,
        "hcas": hcas.collect::<Vec<_>>(),
        "fabric": fabric(&summary.fabric),
        "losses": summary.losses.iter().map(flow).collect::<Vec<_>>(),
        "ethernet": switch,
        "capture_error": summary.capture_error,
    })
}

/// Returns a line of the log.
#[must_use]
pub fn log_line(node: usize, entry: &Entry) -> Value {
    json!({
        "hca": node,
        "seconds": seconds(entry.at),
        "level": match entry.level {
            Level::Info => "info",
            Level::Warning => "warning",
            Level::Refusal => "refusal",
        },
        "field": entry.field,
        "text": entry.text,
        "message": entry.to_string(),
    })
}
