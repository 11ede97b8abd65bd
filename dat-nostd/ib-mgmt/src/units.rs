//! The encoded quantities of management messages: rate codes, time exponents.

use ib_types::Duration;

/// 4.096 µs · 2^n: the time of an exponent in management messages. Only the low 5 bits count.
pub const fn exponent_time(n: u8) -> Duration {
    Duration::from_nanos(4096 << (n & 0x1f))
}

/// The smallest exponent whose time is at least `time`; at most 31.
pub const fn exponent_for(time: Duration) -> u8 {
    let mut n = 0;
    while n < 31 && exponent_time(n).as_nanos() < time.as_nanos() {
        n += 1;
    }
    n
}

/// Mbit/s of a static rate code (IBA volume 1, table 224 and its extensions).
pub const fn rate_mbps(code: u8) -> Option<u32> {
    Some(match code {
        2 => 2_500,
        5 => 5_000,
        3 => 10_000,
        6 => 20_000,
        4 => 30_000,
        7 => 40_000,
        8 => 60_000,
        9 => 80_000,
        10 => 120_000,
        11 => 14_000,
        12 => 56_000,
        13 => 112_000,
        14 => 168_000,
        15 => 25_000,
        16 => 100_000,
        17 => 200_000,
        18 => 300_000,
        19 => 28_000,
        20 => 50_000,
        21 => 400_000,
        22 => 600_000,
        _ => return None,
    })
}

/// Returns the local ACK timeout exponent of a REQ. The exponent is about twice the packet life
/// time plus the CA's own delay, all as exponents (IBA volume 1, section 12.7.34). At most 31.
pub const fn local_ack_timeout(packet_life_time: u8, local_ca_ack_delay: u8) -> u8 {
    let (t, d) = (packet_life_time as u16 + 1, local_ca_ack_delay as u16);
    let sum = if t >= d {
        if d + 1 >= t { t + 1 } else { t }
    } else if t + 1 >= d {
        d + 1
    } else {
        d
    };
    if sum > 31 { 31 } else { sum as u8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponents() {
        assert_eq!(exponent_time(0), Duration::from_nanos(4_096));
        assert_eq!(exponent_time(20), Duration::from_nanos(4_294_967_296));
        assert_eq!(exponent_for(Duration::from_nanos(4_096)), 0);
        assert_eq!(exponent_for(Duration::from_nanos(4_097)), 1);
        assert_eq!(exponent_for(Duration::MAX), 31);
        for n in 0..32 {
            assert_eq!(exponent_for(exponent_time(n)), n);
        }
    }

    #[test]
    fn rates() {
        assert_eq!((rate_mbps(16), rate_mbps(1)), (Some(100_000), None));
    }

    #[test]
    fn ack_timeout_rule() {
        // t = life + 1 against d: far above, one above, equal, one below, far below.
        assert_eq!(local_ack_timeout(18, 15), 19);
        assert_eq!(local_ack_timeout(18, 18), 20);
        assert_eq!(local_ack_timeout(18, 19), 20);
        assert_eq!(local_ack_timeout(18, 20), 21);
        assert_eq!(local_ack_timeout(18, 22), 22);
        assert_eq!(local_ack_timeout(31, 31), 31);
    }
}
