//! RDS under load: how many acknowledgements travel on their own.

use harness::rds::{GENERATION, LIMIT, Nodes, at, message};
use rds_nostd::{Arrival, MsgFlags, RdsConfig, RdsError, Received};

/// Messages of `len` bytes from `senders` sockets of one node, as fast as they are taken, to one of the other. Gives the frames that only
/// acknowledged, of both.
fn stream(seed: u64, len: usize, senders: u16, messages: usize) -> u64 {
    let mut nodes = Nodes::with(seed, "none", 2, RdsConfig { seed, ..RdsConfig::new(GENERATION) });
    let to = nodes.bind(1, 4000);
    let from: Vec<_> = (0..senders).map(|sender| nodes.bind(0, 5000 + sender)).collect();
    let (mut sent, mut arrived) = (vec![0; from.len()], vec![0; from.len()]);
    let mut buffer = vec![0; len + 1];
    let end = nodes.world.now() + LIMIT;
    while arrived.iter().any(|&arrived| arrived < messages) {
        assert!(nodes.world.now() < end, "{arrived:?} of {messages} arrived");
        for (sender, &socket) in from.iter().enumerate() {
            while sent[sender] < messages {
                match nodes.send(0, socket, at(1, 4000), &message(sender, sent[sender], len)) {
                    Ok(_) => sent[sender] += 1,
                    Err(RdsError::Again | RdsError::NoBufferSpace | RdsError::Congested) => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        nodes.step();
        while let Ok(Arrival::Message(received)) =
            nodes.rds[1].recvmsg(&mut nodes.adapters[1], to, &mut buffer, MsgFlags::empty())
        {
            let sender = usize::from(received.from.port() - 5000);
            let whole = Received { from: at(0, 5000 + sender as u16), len, message_len: len, cookie: None };
            assert_eq!(received, whole);
            assert!(buffer[..len] == message(sender, arrived[sender], len), "message {}", arrived[sender]);
            arrived[sender] += 1;
        }
    }
    let counters = [0, 1].map(|node| *nodes.rds[node].counters());
    assert_eq!(counters[1].recv_delivered, (messages * from.len()) as u64);
    assert_eq!(counters.map(|counters| counters.conn_reset), [0, 0]);
    nodes.close();
    counters.iter().map(|counters| counters.ack_sent).sum()
}

/// Whatever the length of messages that a send buffer holds many of, whoever sends them.
#[test]
fn of_eight_messages_one_is_acknowledged_by_itself() {
    for (seed, (len, senders)) in
        [(0, 1), (64, 1), (1000, 1), (4096, 1), (64, 3), (3000, 3)].into_iter().enumerate()
    {
        let messages = 400;
        let acknowledgements = stream(seed as u64 + 1, len, senders, messages);
        let total = messages as u64 * u64::from(senders);
        println!("{total} messages of {len} bytes from {senders}: {acknowledgements} acknowledgements");
        // The first message on a connection asks for one in any case.
        assert!(
            (acknowledgements - 1) * 8 <= total,
            "{acknowledgements} for {total} messages of {len} bytes"
        );
        assert!(acknowledgements > 0, "or nothing would ever leave the send buffer");
    }
}
