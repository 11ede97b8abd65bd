use super::*;
use std::format;
use std::string::{String, ToString};
use std::time::Duration;
use std::vec::Vec;

fn request() -> Request {
    let name = Name::new("linux-6.12.efi").expect("a name");
    Request { tag: 0x0102_0304_0506_0708, offset: 3 << 32, len: 0x10_0000, name }
}

fn reply() -> Reply {
    let (size, offset, cookie) = (5 << 32, 3 << 32, 0x1122_3344_5566_7788);
    Reply { tag: 7, size, offset, cookie, status: Status::Busy, checksum: 0xdead_beef, len: 4096 }
}

#[test]
fn messages_have_the_layout_of_the_c_server() {
    let bytes = request().to_bytes();
    assert_eq!(bytes.len(), 96);
    assert_eq!(bytes[..16], [b'R', b'B', b'O', b'T', 0, 1, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(
        (&bytes[16..24], &bytes[24..32]),
        (&[0, 0, 0, 3, 0, 0, 0, 0][..], &[0, 0x10, 0, 0, 0, 0, 0, 0][..])
    );
    assert_eq!((&bytes[32..46], &bytes[46..]), (&b"linux-6.12.efi"[..], &[0; 50][..]));
    assert_eq!(Request::parse(&bytes), Ok(request()));
    let bytes = reply().to_bytes();
    assert_eq!(bytes.len(), 56);
    assert_eq!(bytes[32..40], 0x1122_3344_5566_7788_u64.to_be_bytes());
    assert_eq!(bytes[40..48], [0, 0, 0, 3, 0xde, 0xad, 0xbe, 0xef]);
    assert_eq!(Reply::parse(&bytes), Ok(reply()));
}

#[test]
fn foreign_and_malformed_messages_are_refused_by_name() {
    let bytes = request().to_bytes();
    assert_eq!(Request::parse(&[]), Err(Malformed::Foreign));
    assert_eq!(Request::parse(&bytes[..95]), Err(Malformed::Foreign));
    assert_eq!(Request::parse(&[&bytes[..], &[0]].concat()), Err(Malformed::Foreign));
    assert_eq!(Reply::parse(&bytes), Err(Malformed::Foreign), "another kind");
    let with = |at: usize, value: u8| {
        let mut bytes = bytes;
        bytes[at] = value;
        Request::parse(&bytes)
    };
    assert_eq!(with(5, 2), Err(Malformed::Version(2)));
    assert_eq!(with(24, 1), Err(Malformed::Field("length")));
    for (at, value) in [(33, b' '), (33, 0x80), (34, 0), (95, 1)] {
        assert_eq!(with(at, value), Err(Malformed::Field("name")), "{at} {value}");
    }
    let mut bytes = reply().to_bytes();
    bytes[43] = 4;
    assert_eq!(Reply::parse(&bytes), Err(Malformed::Field("status")));
    // Any byte anywhere.
    for at in 0..bytes.len() {
        for value in [0, 1, 0x7f, 0xff] {
            let mut bytes = bytes;
            bytes[at] = value;
            let _ = (Reply::parse(&bytes), Request::parse(&bytes[..at]));
        }
    }
}

#[test]
fn names_fill_the_field_and_no_more() {
    let longest = "x".repeat(MAX_NAME);
    let name = Name::new(&longest).expect("fits");
    let request = Request { name, ..request() };
    assert_eq!(
        Request::parse(&request.to_bytes()).map(|request| request.name.as_str().to_string()),
        Ok(longest.clone())
    );
    assert_eq!(Name::new(&(longest + "x")), None);
    assert_eq!(Name::new("a b"), None);
    assert_eq!(Name::new("").map(|name| name == Name::EMPTY), Some(true));
}

#[test]
fn settings_are_one_line_and_each_mistake_is_named() {
    let settings =
        Settings::parse("ip=10.1.2.3/16 server=10.1.0.1 gateway=10.1.0.2 image=a.efi wait=3 limit=64")
            .expect("right");
    assert_eq!((settings.ip.octets(), settings.prefix_len), ([10, 1, 2, 3], 16));
    assert_eq!((settings.image.as_str(), settings.patience), ("a.efi", Duration::from_secs(3)));
    assert_eq!(settings.max_bytes, 64 << 20);
    let settings = Settings::parse(" server=10.0.0.2\tip=10.0.0.1 ").expect("right");
    assert_eq!((settings.prefix_len, settings.image, settings.gateway), (24, Name::EMPTY, None));
    assert_eq!((settings.initrd, settings.arguments), (None, ""));
    let cases = [
        ("", "ip= is missing; it takes an IPv4 address, perhaps with /"),
        ("ip=10.0.0.1", "server= is missing"),
        ("ip=10.0.0 server=1.2.3.4", "ip=10.0.0 is not an IPv4 address"),
        ("ip=10.0.0.1/33 server=1.2.3.4", "ip=10.0.0.1/33 is not"),
        ("ip=1.2.3.4 ip=1.2.3.4", "ip= is given twice"),
        ("ip=1.2.3.4 server=1.2.3.5 wait=0", "wait=0 is not seconds from 1 to 600"),
        ("ip=1.2.3.4 server=1.2.3.5 limit=5000", "limit=5000 is not MiB"),
        (
            "colour=red",
            "`colour=red` is unknown; known: ip= server= gateway= image= initrd= wait= limit= args=",
        ),
        ("ip=1.2.3.4 server=1.2.3.5 initrd=", "initrd= is not a name of 1 to 64"),
        ("ip=1.2.3.4 args=server=1.2.3.5", "server= is missing"),
        ("ip=1.2.3.4 server=1.2.3.5 xargs=a", "`xargs=a` is unknown"),
        ("ip", "`ip` is unknown"),
    ];
    for (line, expected) in cases {
        let error = Settings::parse(line).expect_err(line).to_string();
        assert!(error.contains(expected), "{line}: {error}");
    }
}

#[test]
fn command_line_of_the_image_is_the_rest_of_the_line() {
    let addresses = "ip=1.2.3.4 server=1.2.3.5";
    for (rest, expected) in [
        ("args=console=ttyS0  root=/dev/ram args=1 ip=dhcp ", "console=ttyS0  root=/dev/ram args=1 ip=dhcp"),
        ("args=", ""),
        ("args= args=twice", "args=twice"),
        ("args=args=own", "args=own"),
    ] {
        let line = format!("{addresses} initrd=initrd.img\t{rest}");
        let settings = Settings::parse(&line).expect("right");
        assert_eq!((settings.arguments, settings.initrd), (expected, Name::new("initrd.img")), "{line}");
    }
}

#[test]
fn failures_say_what_happened() {
    let texts: Vec<String> = [
        FetchError::NoServer,
        FetchError::Stopped(4096),
        FetchError::Size(7),
        FetchError::Checksum { expected: 1, found: 2 },
        FetchError::Malformed(Malformed::Version(9)),
    ]
    .iter()
    .map(ToString::to_string)
    .collect();
    assert_eq!(texts[1], "the server stopped answering after 4096 bytes");
    assert_eq!(texts[3], "the image's checksum is 0x00000002, not 0x00000001");
    assert_eq!(texts[4], "the server sent version 9 of the protocol; this is 1");
}
