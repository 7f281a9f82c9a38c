use proptest::prelude::*;

use super::*;

/// The example of RFC 7677.
const SALT: &str = "W22ZaJ0SNY7soEsUEjb6gQ==";
const FIRST: &str = "n,,n=user,r=rOprNGfwEbeRWgbNEkqO";
const OUR_NONCE: &str = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
const OURS: &str =
    "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
const LAST: &str = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
                    p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
const OUR_PROOF: &str = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";

fn credential() -> Credential {
    let (hash, salt) = (ScramHash::Sha256, BASE64.decode(SALT).expect("base64"));
    let salted = hash.salted("pencil", &salt, checked(4096).expect("possible"));
    Credential::new(hash, &salt, 4096, &salted).expect("a credential")
}

fn challenged(first: &str) -> ScramServer {
    let first = ScramFirst::parse(first.as_bytes()).expect("a first message");
    first.challenge(credential(), OUR_NONCE).1
}

#[test]
fn an_exchange_is_that_of_the_rfc() {
    let first = ScramFirst::parse(FIRST.as_bytes()).expect("a first message");
    assert_eq!(first.user, "user");
    let (ours, server) = first.challenge(credential(), OUR_NONCE);
    assert_eq!(ours, OURS.as_bytes());
    assert_eq!(server.finish(LAST.as_bytes()).as_deref(), Ok(OUR_PROOF.as_bytes()));
}

#[test]
fn who_does_not_know_the_password_is_refused_like_one_who_is_not_there() {
    let wrong = LAST.replace("dHzb", "dHzc");
    assert_eq!(challenged(FIRST).finish(wrong.as_bytes()), Err(ScramError::Refused));
    let short = LAST.replace("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=", "dHzb");
    assert_eq!(challenged(FIRST).finish(short.as_bytes()), Err(ScramError::Refused));
    let nobody = Credential::of_nobody(ScramHash::Sha256, "user", b"secret", &[]);
    assert_eq!(nobody, Credential::of_nobody(ScramHash::Sha256, "user", b"secret", &[]));
    assert_ne!(nobody.salt, Credential::of_nobody(ScramHash::Sha256, "user", b"other", &[]).salt);
    assert_ne!(nobody.salt, Credential::of_nobody(ScramHash::Sha256, "other", b"secret", &[]).salt);
    assert_eq!(nobody.stored_key.len(), credential().stored_key.len());
    let first = ScramFirst::parse(FIRST.as_bytes()).expect("a first message");
    let server = first.challenge(nobody, OUR_NONCE).1;
    assert_eq!(server.finish(LAST.as_bytes()), Err(ScramError::Refused));
}

#[test]
fn who_is_not_there_looks_like_those_who_are() {
    let shape = |user: &str, usual: &[Shape]| {
        Credential::of_nobody(ScramHash::Sha512, user, b"secret", usual).shape()
    };
    let of = |iterations, salt: &[u8]| {
        let made = Credential::new(ScramHash::Sha512, salt, iterations, &[1; 64]);
        made.expect("a credential").shape()
    };
    assert_eq!(shape("a", &[]), Shape::FIRST);
    let (few, many) = (of(4096, &[0; 26]), of(8192, &[0; 16]));
    assert_eq!(shape("a", &[many]), many);
    let names: Vec<String> = (0..400).map(|number| format!("user {number}")).collect();
    let shapes: Vec<Shape> = names.iter().map(|it| shape(it, &[few, many, many, many])).collect();
    let count = shapes.iter().filter(|it| **it == few).count();
    assert!((60..140).contains(&count), "{count} of 400, where a quarter of the users look so");
    assert!(shapes.iter().all(|it| *it == few || *it == many));
}

#[test]
fn a_last_message_answers_this_exchange_and_no_other() {
    for (changed, with) in
        [("r=rOpr", "r=rOpp"), ("c=biws", "c=eSws"), ("c=biws,", ""), (",p=", ",q=")]
    {
        let last = LAST.replace(changed, with);
        let refused = challenged(FIRST).finish(last.as_bytes());
        assert!(matches!(refused, Err(ScramError::Malformed(_))), "{last}");
    }
    let echoed = "c=biws,r=rOprNGfwEbeRWgbNEkqO,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
    assert!(challenged(FIRST).finish(echoed.as_bytes()).is_err(), "the client's nonce alone");
}

/// What a client that knows the password says last, with this nonce.
fn last(nonce: &str) -> String {
    let credential = credential();
    let salt = BASE64.decode(SALT).expect("base64");
    let salted = credential.hash.salted("pencil", &salt, checked(4096).expect("possible"));
    let key = credential.hash.sign(salted.as_ref(), b"Client Key");
    let signed = format!("c=biws,r={nonce}");
    let message = format!("n=user,r=rOprNGfwEbeRWgbNEkqO,{OURS},{signed}");
    let signature = credential.hash.sign(&credential.stored_key, message.as_bytes());
    let pairs = key.as_ref().iter().zip(signature.as_ref());
    let proof: Vec<u8> = pairs.map(|(key, signature)| key ^ signature).collect();
    format!("{signed},p={}", BASE64.encode(&proof))
}

#[test]
fn a_client_that_puts_its_own_nonce_twice_gets_in_as_old_librdkafka_does() {
    let theirs = "rOprNGfwEbeRWgbNEkqO";
    assert_eq!(last(&format!("{theirs}{OUR_NONCE}")), LAST);
    let twice = last(&format!("{theirs}{theirs}{OUR_NONCE}"));
    assert!(challenged(FIRST).finish(twice.as_bytes()).is_ok());
    for other in [
        format!("{theirs}{theirs}{theirs}{OUR_NONCE}"),
        format!("x{theirs}{OUR_NONCE}"),
        format!("{theirs}{theirs}"),
        OUR_NONCE.to_owned(),
    ] {
        let refused = challenged(FIRST).finish(last(&other).as_bytes());
        assert!(matches!(refused, Err(ScramError::Malformed(_))), "{other}");
    }
    let wrong = twice.replace(",p=", ",p=A");
    assert!(challenged(FIRST).finish(wrong.as_bytes()).is_err());
}

#[test]
fn first_messages_are_read_or_refused() {
    let user = |text: &str| ScramFirst::parse(text.as_bytes()).map(|it| it.user);
    assert_eq!(user("n,,n=a=2Cb=3Dc,r=x").as_deref(), Ok("a,b=c"));
    let is_by_token = |text: &str| ScramFirst::parse(text.as_bytes()).map(|it| it.is_by_token);
    assert_eq!(is_by_token("n,,n=id,r=x,tokenauth=true"), Ok(true));
    for text in ["n,,n=id,r=x", "n,,n=id,r=x,tokenauth=false", "n,,n=id,r=x,other=true"] {
        assert_eq!(is_by_token(text), Ok(false), "{text}");
    }
    assert_eq!(user("y,a=al,n=al,r=x,ext=1").as_deref(), Ok("al"));
    for bad in [
        "",
        "n",
        "n,",
        "n,,",
        "n,,n=,r=x",
        "n,,n=a",
        "n,,n=a,r=",
        "n,,r=x,n=a",
        "n,,n=a=,r=x",
        "n,,n=a=2c,r=x",
        "p=tls-unique,,n=a,r=x",
        "n,a=other,n=a,r=x",
        "n,b=a,n=a,r=x",
        "n,,m=x,n=a,r=x",
    ] {
        assert!(matches!(user(bad), Err(ScramError::Malformed(_))), "{bad}");
    }
    assert!(ScramFirst::parse(b"n,,n=\xff,r=x").is_err());
}

#[test]
fn credentials_have_bounds_and_keep_no_password() {
    for (iterations, size) in [(4095, 32), (16_385, 32), (0, 32), (-1, 32), (4096, 0)] {
        assert!(Credential::new(ScramHash::Sha256, b"s", iterations, &vec![1; size]).is_err());
    }
    // Kafka's controller takes any size; no password fits such a one.
    for size in [18, 64, 100] {
        assert!(Credential::new(ScramHash::Sha256, b"s", 4096, &vec![1; size]).is_ok(), "{size}");
    }
    assert_eq!(
        Credential::new(ScramHash::Sha512, b"", 4096, &[1; 64]),
        Err(CredentialError::NoSalt)
    );
    let kept = credential();
    assert!(kept.fits("pencil") && !kept.fits("pencil2") && !kept.fits(""));
    assert_eq!(format!("{kept:?}"), "SCRAM-SHA-256 with 4096 iterations");
    let text = serde_json::to_string(&kept).expect("JSON");
    assert_eq!(serde_json::from_str::<Credential>(&text).expect("a credential"), kept);
    assert!(serde_json::from_str::<Credential>(&text.replace("\"hash\":1", "\"hash\":3")).is_err());
}

proptest! {
    #[test]
    fn no_message_ends_the_process(first in ".{0,60}", last in proptest::collection::vec(any::<u8>(), 0..80)) {
        let _unread = ScramFirst::parse(first.as_bytes());
        let _unread = challenged(FIRST).finish(&last);
        let cut = &LAST.as_bytes()[..last.len().min(LAST.len())];
        prop_assert!(challenged(FIRST).finish(cut).is_err());
    }
}
