use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};

use super::*;

/// Names in DER, and what `new X500Principal(der).getName()` of Java 17 made of them.
const NAMES: &[(&str, &str, &str)] = &[
    (
        "plain",
        "303d310b30090603550406130244453110300e060355040a0c074578616d706c65310c300a060355040b0c034f7073310e30\
         0c06035504030c05616c696365",
        "CN=alice,OU=Ops,O=Example,C=DE",
    ),
    (
        "all keywords",
        "3081a0310b30090603550406130244453110300e06035504080c0742617661726961310f300d06035504070c064d756e6963\
         683116301406035504090c0d4869676820537472656574203131173015060a0992268993f22c64011916076578616d706c65\
         310b3009060355040a0c024578310c300a060355040b0c034f707331123010060a0992268993f22c6401010c02616c310e30\
         0c06035504030c05616c696365",
        "CN=alice,UID=al,OU=Ops,O=Ex,DC=example,STREET=High Street 1,L=Munich,ST=Bavaria,C=DE",
    ),
    (
        "comma",
        "301f3111300f060355040a0c0845782c20496e632e310a300806035504030c0161",
        "CN=a,O=Ex\\, Inc.",
    ),
    ("plus", "300e310c300a06035504030c03612b62", "CN=a\\+b"),
    ("quotes", "30133111300f06035504030c087361792022686922", "CN=say \\\"hi\\\""),
    ("backslash", "300e310c300a06035504030c03615c62", "CN=a\\\\b"),
    ("angle and semicolon", "3010310e300c06035504030c053c613e3b62", "CN=\\<a\\>\\;b"),
    ("equals", "300e310c300a06035504030c03613d62", "CN=a\\=b"),
    ("leading sharp", "300d310b300906035504030c022361", "CN=\\#a"),
    ("inner sharp", "300e310c300a06035504030c03612362", "CN=a\\#b"),
    ("leading space", "300d310b300906035504030c022061", "CN=\\ a"),
    ("trailing spaces", "300e310c300a06035504030c03612020", "CN=a\\ \\ "),
    ("only spaces", "300d310b300906035504030c022020", "CN=\\ \\ "),
    ("carriage returns", "300e310c300a06035504030c030d610d", "CN=\\\u{d}a\\\u{d}"),
    ("inner spaces", "300f310d300b06035504030c0461202062", "CN=a  b"),
    ("newline and tab", "300f310d300b06035504030c040a09610a", "CN=\u{a}\u{9}a\u{a}"),
    ("space after an escape", "3010310e300c06035504030c05202c612c20", "CN=\\ \\,a\\,\\ "),
    ("accents", "301a3118301606035504030c0f4ac3bc7267656e204dc3bcc39f6967", "CN=Jürgen Müßig"),
    ("beyond the BMP", "30133111300f06035504030c086b657920f09f9491", "CN=key 🔑"),
    (
        "japanese",
        "302831153013060355040a0c0ce6a0aae5bc8fe4bc9ae7a4be310f300d06035504030c06e5b1b1e794b0",
        "CN=山田,O=株式会社",
    ),
    (
        "multi-valued",
        "302a310b3009060355040a0c024578311b300806035504030c0161300f060a0992268993f22c6401010c0131",
        "CN=a+UID=1,O=Ex",
    ),
    (
        "multi-valued, other order",
        "302831263008060355040b0c017a300806035504030c0162301006092a864886f70d0109011603624063",
        "OU=z+CN=b+1.2.840.113549.1.9.1=#1603624063",
    ),
    (
        "email",
        "302a310a300806035504030c0161311c301a06092a864886f70d010901160d61406578616d706c652e636f6d",
        "1.2.840.113549.1.9.1=#160d61406578616d706c652e636f6d,CN=a",
    ),
    (
        "unknown OID",
        "301c310e300c06072a030405868d1f0c0176310a300806035504030c0161",
        "CN=a,1.2.3.4.5.99999=#0c0176",
    ),
    (
        "other keywords",
        "304b310b300906035504040c024c69310a30080603550405130137310b3009060355040c0c024472310b3009060355042a0c\
         02416c310a3008060355042e130171310a300806035504030c0161",
        "CN=a,2.5.4.46=#130171,2.5.4.42=#0c02416c,2.5.4.12=#0c024472,2.5.4.5=#130137,2.5.4.4=#0c024c69",
    ),
    (
        "unknown OID, integer",
        "301c310e300c06072a030405868d1f020105310a300806035504030c0161",
        "CN=a,1.2.3.4.5.99999=#020105",
    ),
    ("known OID, integer", "300c310a30080603550403020105", "CN=#020105"),
    ("null", "300e310c300a06035504030c03610062", "CN=a\\00b"),
    ("control", "300f310d300b06035504030c0461017f62", "CN=a\u{1}\u{7f}b"),
    ("printable", "3018311630140603550403130d412728292b2c2d2e2f3a3d3f7a", "CN=A'()\\+\\,-./:\\=?z"),
    ("ia5", "30123110300e06035504031607612a6240635f26", "CN=a*b@c_&"),
    ("t61, latin 1", "3011310f300d060355040314064afc7267656e", "CN=J\u{fffd}rgen"),
    ("bmp", "300f310d300b06035504031e04004a00fc", "CN=\\00J\\00\u{fffd}"),
    ("universal", "30133111300f06035504031c080000004a000000fc", "CN=#1c080000004a000000fc"),
    ("general", "300e310c300a06035504031b0367656e", "CN=gen"),
    ("numeric", "300e310c300a06035504031203313233", "CN=#1203313233"),
    ("visible", "300e310c300a06035504031a03766973", "CN=#1a03766973"),
    (
        "broken utf-8",
        "30153113301106035504030c0a61c328e282f09f9862ff",
        "CN=a\u{fffd}(\u{fffd}\u{fffd}b\u{fffd}",
    ),
    ("empty value", "301731093007060355040a0c00310a300806035504030c0161", "CN=a,O="),
    ("empty", "3000", ""),
    ("two names", "3018310a300806035504030c0161310a300806035504030c0162", "CN=b,CN=a"),
    (
        "domain",
        "304231133011060a0992268993f22c6401191603636f6d31173015060a0992268993f22c64011916076578616d706c653112\
         3010060a0992268993f22c6401010c02616c",
        "UID=al,DC=example,DC=com",
    ),
    ("non-breaking space", "3010310e300c06035504030c05c2a061c2a0", "CN=\u{a0}a\u{a0}"),
];

fn bytes(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).expect("ASCII"));
    digits.map(|pair| u8::from_str_radix(pair, 16).expect("hexadecimal")).collect()
}

#[test]
fn names_are_written_as_java_writes_them() {
    for (what, der, written) in NAMES {
        let der = bytes(der);
        let (rest, name) = X509Name::from_der(&der).expect(what);
        assert!(rest.is_empty(), "{what}");
        assert_eq!(distinguished_name(&name), *written, "{what}");
    }
    // A length of more than one byte.
    let long = "x".repeat(200);
    let mut params = params(&[], &[]);
    params.distinguished_name.push(DnType::CustomDnType(vec![1, 2, 3]), long.as_str());
    let hex = "78".repeat(200);
    assert_eq!(user(&params, UserName::Dn), Ok(format!("User:1.2.3=#0c81c8{hex}")));
}

fn params(common_names: &[&str], alternatives: &[SanType]) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    for name in common_names {
        params.distinguished_name.push(DnType::CommonName, *name);
    }
    params.subject_alt_names = alternatives.to_vec();
    params
}

fn user(params: &CertificateParams, by: UserName) -> Result<String, CertificateError> {
    let key = KeyPair::generate().expect("a key");
    let certificate = params.self_signed(&key).expect("a certificate");
    user_of(certificate.der(), by, &NameRules::default()).map(|it| it.to_string())
}

fn dns(name: &str) -> SanType {
    SanType::DnsName(name.try_into().expect("a DNS name"))
}

fn uri(uri: &str) -> SanType {
    SanType::URI(uri.try_into().expect("a URI"))
}

#[test]
fn a_user_is_named_by_what_is_configured() {
    let alternatives =
        [dns("App.example.com"), uri("https://example.com"), uri("spiffe://example.com/app")];
    let whole = params(&["al, the first"], &alternatives);
    for (by, name) in [
        (UserName::Dn, "User:CN=al\\, the first"),
        (UserName::Cn, "User:al, the first"),
        (UserName::Spiffe, "User:spiffe://example.com/app"),
        (UserName::Dns, "User:app.example.com"),
    ] {
        assert_eq!(user(&whole, by).as_deref(), Ok(name));
        let count_of = |params| match user(&params, by) {
            Err(CertificateError::Ambiguous { what, count }) if what == by.what() => count,
            other => panic!("{by:?}: {other:?}"),
        };
        assert_eq!(count_of(params(&[], &[])), 0, "{by:?}");
    }
    let two = params(
        &["a"],
        &[dns("a.example"), dns("b.example"), uri("spiffe://a/b"), uri("spiffe://a/c")],
    );
    for by in [UserName::Spiffe, UserName::Dns] {
        assert!(matches!(user(&two, by), Err(CertificateError::Ambiguous { count: 2, .. })));
    }
}

#[test]
fn nodes_links_and_names_that_stand_for_others_are_no_users() {
    for name in ["node-1.61.meridian", "link-east.61.MERIDIAN", "ca.61.meridian"] {
        for by in [UserName::Dn, UserName::Cn, UserName::Spiffe, UserName::Dns] {
            let refused = user(&params(&["al"], &[dns("a.example"), dns(name)]), by);
            let expected = CertificateError::OfTheCluster { name: name.to_owned() };
            assert_eq!(refused, Err(expected), "{by:?}");
        }
    }
    assert!(user(&params(&["al"], &[dns("meridian.example")]), UserName::Dn).is_ok());
    for name in ["ANONYMOUS", "*"] {
        let refused = user(&params(&[name], &[]), UserName::Cn);
        assert_eq!(refused, Err(CertificateError::NoUser { name: name.to_owned() }));
        assert!(user(&params(&[name], &[]), UserName::Dn).is_ok(), "CN={name}");
    }
    let rules = NameRules::default();
    let refused = user_of(b"no", UserName::Dn, &rules);
    assert!(matches!(refused, Err(CertificateError::Malformed { .. })));
    let key = KeyPair::generate().expect("a key");
    let certificate = params(&["al"], &[]).self_signed(&key).expect("a certificate");
    for (rule, made) in [
        ("RULE:CN=(.*)/$1/", Ok(Principal::user("al"))),
        ("RULE:O=(.*)/$1/", Err(CertificateError::NoRule { name: "CN=al".to_owned() })),
        ("RULE:CN=(.*)//", Err(CertificateError::NoRule { name: "CN=al".to_owned() })),
        ("RULE:CN=(.*)/*/", Err(CertificateError::NoUser { name: "*".to_owned() })),
    ] {
        let rules = NameRules::parse(&[rule.to_owned()]).expect("a rule");
        assert_eq!(user_of(certificate.der(), UserName::Dn, &rules), made, "{rule}");
    }
}
