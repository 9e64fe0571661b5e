use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::protocol::Role;

use super::*;
use crate::api::channels::PROTOCOLS;
use crate::api::handlers::BoxDuplex;
use crate::api::spdy::{Frame, Reader, Writer};

fn headers(all: &[(&str, &str)]) -> Headers {
    all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn a_stream_without_kind_or_port_is_refused() {
    type Case<'a> = (&'a [(&'a str, &'a str)], Result<(Part, u16), &'a str>);
    let cases: [Case<'_>; 7] = [
        (&[("streamtype", "data")], Err("\"port\" header is required")),
        (&[("port", "abc"), ("streamtype", "data")], Err("unable to parse \"abc\" as a port")),
        (&[("port", "-1"), ("streamtype", "data")], Err("unable to parse \"-1\" as a port")),
        (&[("port", "80")], Err("\"streamType\" header is required")),
        (&[("port", "80"), ("streamtype", "error")], Ok((Part::Error, 80))),
        (&[("port", "80"), ("streamtype", "data")], Ok((Part::Data, 80))),
        (&[("port", "80"), ("streamtype", "stdin")], Err("invalid stream type \"stdin\"")),
    ];
    for (given, expected) in cases {
        assert_eq!(purpose(&headers(given)), expected.map_err(str::to_owned), "{given:?}");
    }
}

#[test]
fn streams_without_a_request_id_belong_together_by_their_numbers() {
    assert_eq!(request_id(Part::Error, &headers(&[]), 1), "1");
    assert_eq!(request_id(Part::Data, &headers(&[]), 3), "1");
    assert_eq!(request_id(Part::Data, &headers(&[]), 1), "0");
    assert_eq!(request_id(Part::Data, &headers(&[("requestid", "7")]), 3), "7");
}

/// A server that gives back what it gets, in capitals, and a dialer to it. Port 1 is closed.
async fn dialer() -> Dialer {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut text = Vec::new();
                let _ = stream.read_to_end(&mut text).await;
                let _ = stream.write_all(&text.to_ascii_uppercase()).await;
            });
        }
    });
    Arc::new(move |port| {
        Box::pin(async move {
            if port == 1 {
                return Err(std::io::ErrorKind::ConnectionRefused.into());
            }
            Ok(Box::new(TcpStream::connect(address).await?) as BoxDuplex)
        })
    })
}

/// Forwards 100 connections at once and returns what came back on each.
async fn hundred(transport: DuplexStream) -> HashMap<u32, Vec<u8>> {
    let (mut read, mut write) = split(transport);
    let (mut reader, mut writer) = (Reader::default(), Writer::default());
    let sending = async {
        for index in 0..100_u32 {
            let (error, data) = (index * 4 + 1, index * 4 + 3);
            let port = if index == 50 { "1" } else { "80" };
            let of = |kind: &str| headers(&[("streamtype", kind), ("port", port), ("requestid", &index.to_string())]);
            for frame in [
                Frame::SynStream { stream: error, fin: true, headers: of("error") },
                Frame::SynStream { stream: data, fin: false, headers: of("data") },
                Frame::Data { stream: data, fin: true, data: format!("hello {index}").into_bytes() },
            ] {
                write.write_all(&writer.bytes(&frame)).await.unwrap();
            }
        }
    };
    let reading = async {
        let (mut got, mut ended) = (HashMap::<u32, Vec<u8>>::new(), 0);
        let mut buffer = [0; 4096];
        while ended < 200 {
            let read = read.read(&mut buffer).await.unwrap();
            assert!(read > 0);
            reader.push(&buffer[..read]);
            while let Some(frame) = reader.take().unwrap() {
                if let Frame::Data { stream, fin, data } = frame {
                    got.entry(stream).or_default().extend(data);
                    ended += usize::from(fin);
                }
            }
        }
        got
    };
    tokio::join!(sending, reading).1
}

fn expect_hundred(got: &HashMap<u32, Vec<u8>>) {
    for index in (0..100_u32).filter(|index| *index != 50) {
        assert_eq!(got[&(index * 4 + 3)], format!("HELLO {index}").into_bytes());
        assert!(got[&(index * 4 + 1)].is_empty());
    }
    assert!(String::from_utf8_lossy(&got[&201]).starts_with("error forwarding port 1 to pod web_edge: "));
}

#[tokio::test]
async fn a_closed_port_fails_only_one_of_a_hundred_connections() {
    let (ours, theirs) = tokio::io::duplex(1024);
    let task = tokio::spawn(over_spdy(theirs, dialer().await, "web_edge".into(), Duration::from_secs(30)));
    expect_hundred(&hundred(ours).await);
    task.await.unwrap();
}

#[tokio::test]
async fn spdy_inside_a_websocket_forwards_as_well() {
    let (ours, theirs) = tokio::io::duplex(1024);
    let server = WebSocketStream::from_raw_socket(theirs, Role::Server, None).await;
    let (transport, carry) = tunnel(server);
    let work = over_spdy(transport, dialer().await, "web_edge".into(), Duration::from_secs(30));
    let task = tokio::spawn(async { tokio::join!(carry, work) });
    let (transport, carry) = tunnel(WebSocketStream::from_raw_socket(ours, Role::Client, None).await);
    let carrying = tokio::spawn(carry);
    expect_hundred(&hundred(transport).await);
    task.await.unwrap();
    carrying.await.unwrap();
}

#[tokio::test]
async fn websocket_channels_forward_each_port_of_the_query() {
    let (ours, theirs) = tokio::io::duplex(1024);
    let server = WebSocketStream::from_raw_socket(theirs, Role::Server, None).await;
    let dial: Dialer = Arc::new(|port| {
        Box::pin(async move {
            if port == 1 {
                return Err(std::io::ErrorKind::ConnectionRefused.into());
            }
            let (ours, mut theirs) = tokio::io::duplex(64);
            tokio::spawn(async move {
                let mut buffer = [0; 5];
                theirs.read_exact(&mut buffer).await.unwrap();
                theirs.write_all(&buffer.to_ascii_uppercase()).await.unwrap();
            });
            Ok(Box::new(ours) as BoxDuplex)
        })
    });
    let task = tokio::spawn(over_channels(server, PROTOCOLS[1], vec![80, 1], dial, "web_edge".into()));
    let mut client = WebSocketStream::from_raw_socket(ours, Role::Client, None).await;
    client.send(Message::binary(b"\x00hello".to_vec())).await.unwrap();
    let mut got: [Vec<u8>; 4] = Default::default();
    while let Some(Ok(message)) = client.next().await {
        if let Message::Binary(bytes) = message {
            got[usize::from(bytes[0])].extend_from_slice(&bytes[1..]);
        }
    }
    task.await.unwrap();
    assert_eq!(got[0], b"\x50\x00HELLO");
    assert_eq!(got[1], b"\x50\x00");
    assert_eq!(got[2], b"\x01\x00");
    assert!(String::from_utf8_lossy(&got[3]).contains("error forwarding port 1 to pod web_edge"));
}

#[tokio::test(start_paused = true)]
async fn an_incomplete_pair_of_streams_times_out_with_an_error() {
    let (ours, theirs) = tokio::io::duplex(1024);
    let dial: Dialer = Arc::new(|_| Box::pin(std::future::ready(Err(std::io::ErrorKind::NotFound.into()))));
    let task = tokio::spawn(over_spdy(theirs, dial, "web_edge".into(), Duration::from_secs(30)));
    let (mut read, mut write) = split(ours);
    let lone = Frame::SynStream { stream: 1, fin: true, headers: headers(&[("streamtype", "error"), ("port", "80"), ("requestid", "0")]) };
    write.write_all(&Writer::default().bytes(&lone)).await.unwrap();
    let (mut reader, mut told, mut buffer) = (Reader::default(), Vec::new(), [0; 512]);
    loop {
        let count = read.read(&mut buffer).await.unwrap();
        reader.push(&buffer[..count]);
        let Ok(Some(frame)) = reader.take() else { continue };
        if let Frame::Data { data, fin, .. } = frame {
            told.extend(data);
            if fin {
                break;
            }
        }
    }
    assert_eq!(String::from_utf8(told).unwrap(), "(request=0) timed out waiting for streams");
    drop((read, write));
    task.await.unwrap();
}
