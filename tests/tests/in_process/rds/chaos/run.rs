//! One run: nodes, what breaks, and the judgement.

use crate::rds::chaos::ledger::Ledger;
use crate::rds::chaos::model::Model;
use crate::rds::chaos::node::{Node, Shared, Stage};
use crate::rds::chaos::plan::{Break, Plan, is_ethernet};
use crate::rds::chaos::tally::Tally;
use crate::rds::chaos::trace::{Event, Trace};
use harness::{Next, Task, World, WorldConfig};
use hca_model::Profile;
use hca_model::card::{CONNECTX_5, CONNECTX_5_EN};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

const SECOND: u64 = 1_000_000_000;
/// Virtual time that a run may take.
const LIMIT: u64 = 300 * SECOND;
/// DMA memory of a node, bytes.
const MEMORY: usize = 8 << 20;

pub fn run(seed: u64) -> Tally {
    let Plan { settings, nodes, mut breaks } = Plan::new(seed);
    let count = nodes.len();
    let world = World::new(&WorldConfig::new(seed));
    let card = |index| if is_ethernet(seed, count, index) { &CONNECTX_5_EN } else { &CONNECTX_5 };
    let platforms: Vec<_> =
        (0..count).map(|index| world.attach(Profile::of(card(index), index as u16), MEMORY).0).collect();
    let shared = Rc::new(Shared {
        world: Rc::clone(&world),
        seed,
        count,
        settings,
        began: Cell::new(world.now()),
        model: RefCell::new(Model::default()),
        ledger: RefCell::new(Ledger::default()),
        incarnations: RefCell::new(vec![0; count]),
        trace: Trace::default(),
        stage: Cell::new(Stage::Chaos),
    });
    let nodes: Vec<RefCell<Node>> = platforms
        .into_iter()
        .zip(nodes)
        .enumerate()
        .map(|(index, (platform, plan))| RefCell::new(Node::new(&shared, index, platform, plan)))
        .collect();
    // Nodes boot one after the other; the story begins when all are there.
    nodes.iter().for_each(|node| node.borrow_mut().boot());
    shared.began.set(world.now());
    let cuts = breaks.iter().filter(|(_, what)| matches!(what, Break::Cable { plugged: false, .. })).count();

    let mut tasks: Vec<Task<'_>> = Vec::new();
    for (index, node) in nodes.iter().enumerate() {
        tasks.push(Task::new(index, |now| node.borrow_mut().turn(now)));
    }
    let mut quiet_until = 0;
    tasks.push(Task::new(0, |now| {
        while let Some((at, _)) = breaks.front() {
            if at + shared.began.get() > now {
                return Next::At(at + shared.began.get());
            }
            let Some((_, what)) = breaks.pop_front() else { break };
            break_it(&shared, now, &what);
        }
        let next = match shared.stage.get() {
            Stage::Chaos if nodes.iter().all(|node| node.borrow().is_through()) => Stage::Last,
            Stage::Last if nodes.iter().all(|node| node.borrow_mut().is_settled()) => {
                // Where nothing is lost any more, connections stay.
                break_it(&shared, now, &Break::Faults("none".to_owned()));
                Stage::VeryLast
            }
            Stage::VeryLast if nodes.iter().all(|node| node.borrow_mut().is_settled()) => {
                quiet_until = now + 3 * SECOND;
                Stage::Quiet
            }
            Stage::Quiet if now >= quiet_until => Stage::Over,
            Stage::Over => return Next::Done,
            _ => return Next::At(now + SECOND / 20),
        };
        shared.stage.set(next);
        shared.trace.note(now - shared.began.get(), Event::Stage(next));
        Next::Again
    }));
    let outcome = world.run(&mut tasks, LIMIT);
    drop(tasks);
    if let Err(stalled) = outcome {
        nodes.iter().for_each(|node| node.borrow().describe());
        panic!("{stalled} in stage {:?}", shared.stage.get());
    }
    let mut nodes: Vec<Node> = nodes.into_iter().map(RefCell::into_inner).collect();
    shared.model.borrow().check_complete(&shared.incarnations.borrow(), &shared.ledger.borrow());
    let mut tally = Tally {
        cuts: cuts as u64,
        mixed: u64::from(is_ethernet(seed, count, 1) != is_ethernet(seed, count, 0)),
        virtual_ms: (world.now() - shared.began.get()) / 1_000_000,
        ..Tally::default()
    };
    let (sent, received) = shared.model.borrow().counts();
    (tally.sent, tally.received) = (sent as u64, received as u64);
    (tally.operations, tally.failed_operations, tally.denied) = shared.ledger.borrow().counts();
    nodes.iter_mut().for_each(Node::assert_all_is_free);
    for node in &mut nodes {
        tally.boots += node.boots;
        tally.deaths += node.boots - 1;
        tally.silent += node.silent_deaths;
        tally.stalls += node.stalls() as u64;
        tally.services += u64::from(settings.services > 1);
        for counters in node.counters() {
            assert_eq!(counters.recv_protocol_errors + counters.recv_drop_bad_checksum, 0, "{counters:?}");
            tally.raised += counters.send_numbers_raised;
            tally.resets += counters.conn_reset;
            tally.raced += counters.connect_raced;
            tally.again += counters.send_retransmitted;
            tally.old += counters.recv_drop_old_seq;
            tally.congested += counters.cong_send_error;
            tally.windows += counters.windows_bound;
        }
        node.close();
    }
    tally
}

fn break_it(shared: &Shared, now: u64, what: &Break) {
    let event = match what {
        Break::Faults(text) => {
            shared.world.set_faults(text.parse().expect("a list of faults"));
            Event::Faults(text.clone())
        }
        &Break::Cable { node, plugged } => {
            shared.world.set_cable(node, plugged);
            Event::Cable { node, plugged }
        }
    };
    shared.trace.note(now - shared.began.get(), event);
}
