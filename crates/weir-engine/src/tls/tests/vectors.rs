//! RFC 8448 section 3, "Simple 1-RTT Handshake": keys and records as its authors have them.

use super::*;

const CLIENT: &str = "9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5";
const SERVER: &str = "a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643";

/// Hello data, 00 to 31, from the client: its first record.
const FROM_CLIENT: &str = "1703030043a23f7054b62c94d0affafe8228ba55cbefacea42f914aa66bcab3f2b9819a8a5b46b395bd54a9a20441e2b62974e1f5a6292a2977014bd1e3deae63aeebb21694915e4";
/// The same from the server: its second record, behind a ticket.
const FROM_SERVER: &str = "17030300432e937e11ef4ac740e538ad36005fc4a46932fc3225d05f82aa1b36e30efaf97d90e6dffc602dcb501a59a8fcc49c4bf2e5f0a21c0047c2abf332540dd032e167c2955d";
const END_OF_CLIENT: &str = "1703030013c9872760655666b74d7ff1153efd6db6d0b0e3";
const END_OF_SERVER: &str = "1703030013b58fd67166ebf599d24720cfbe7efa7a8864a9";

#[test]
fn keys_and_ivs() {
    let cipher = Cipher::Aes128Gcm;
    let cases = [
        (CLIENT, "17422dda596ed5d9acd890e3c63f5051", "5b78923dee08579033e523d9"),
        (SERVER, "9f02283b6c9c07efc26bb9f2ac92e356", "cf782b88dd83549aadf1e984"),
    ];
    for (secret, key, iv) in cases {
        assert!(are_derived(cipher, &hex(secret), &hex(key), &hex(iv)));
        assert!(!are_derived(cipher, &hex(secret), &hex(key), &[0; 12]));
        assert!(!are_derived(cipher, &hex(secret), &[0; 16], &hex(iv)));
        assert!(!are_derived(cipher, &hex(secret)[1..], &hex(key), &hex(iv)));
    }
}

#[test]
fn records() {
    let (client, server) = (hex(CLIENT), hex(SERVER));
    let cipher = Cipher::Aes128Gcm;
    let mut at_client = Session::tls13(cipher, (&client, 0), (&server, 1)).unwrap();
    let mut at_server = Session::tls13(cipher, (&server, 1), (&client, 0)).unwrap();
    let data: Vec<u8> = (0..50).collect();
    let exchange = |from: &mut Session, to: &mut Session, record: &str, end: &str| {
        let mut out = Vec::new();
        from.seal(&[IoSlice::new(&data)], &mut out).unwrap();
        assert_eq!(out, hex(record));
        from.seal_alert(Alert::CloseNotify, &mut out).unwrap();
        assert_eq!(out, hex(&[record, end].concat()));
        let opened = to.open(&mut out).unwrap();
        assert_eq!(opened, Opened { plaintext: 50, used: out.len(), is_end: true });
        assert_eq!(out[..50], data);
    };
    exchange(&mut at_client, &mut at_server, FROM_CLIENT, END_OF_CLIENT);
    exchange(&mut at_server, &mut at_client, FROM_SERVER, END_OF_SERVER);
}

fn hex(text: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(byte).collect()
}
