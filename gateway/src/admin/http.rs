//! As much HTTP/1.1 as read-only pages need: one GET per connection, everything bounded.

use std::io;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use crate::kafka::BasicLogin;

/// A request line and its headers; a longer request is refused.
const HEAD_SIZE_BYTES_MAX: usize = 8 << 10;
/// Time to send the request, and again to take the answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Ok,
    BadRequest,
    Unauthorized,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    HeadTooLarge,
    Unavailable,
}

impl Status {
    fn line(self) -> &'static str {
        match self {
            Self::Ok => "200 OK",
            Self::BadRequest => "400 Bad Request",
            Self::Unauthorized => "401 Unauthorized",
            Self::Forbidden => "403 Forbidden",
            Self::NotFound => "404 Not Found",
            Self::MethodNotAllowed => "405 Method Not Allowed",
            Self::HeadTooLarge => "431 Request Header Fields Too Large",
            Self::Unavailable => "503 Service Unavailable",
        }
    }
}

/// The path of a request, and who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) path: String,
    /// `None` too if what the request says of it can't be read.
    pub(crate) login: Option<BasicLogin>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Page {
    status: Status,
    content_type: &'static str,
    body: Bytes,
}

impl Page {
    pub(super) fn new(status: Status, content_type: &'static str, body: Bytes) -> Self {
        Self { status, content_type, body }
    }

    pub(super) fn ok(content_type: &'static str, body: Bytes) -> Self {
        Self::new(Status::Ok, content_type, body)
    }

    fn refusal(status: Status) -> Self {
        Self::new(status, "text/plain; charset=utf-8", format!("{}\n", status.line()).into())
    }
}

/// Reads one request, answers it with `page(asked)` and closes.
pub(super) async fn serve<P: Future<Output = Page>>(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    page: impl Fn(Asked) -> P,
) -> io::Result<()> {
    let Some(head) = timeout(PATIENCE, read_head(&mut stream)).await?? else { return Ok(()) };
    let page = match head.as_deref().map_or(Err(Status::HeadTooLarge), asked) {
        Ok(asked) => page(asked).await,
        Err(status) => Page::refusal(status),
    };
    timeout(PATIENCE, write(&mut stream, &page)).await?
}

/// Everything up to the empty line: `None` if the client went away first, and `Some(None)` if it
/// is too long.
async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Option<Vec<u8>>>> {
    let mut head = Vec::with_capacity(1024);
    let mut limited = stream.take(HEAD_SIZE_BYTES_MAX as u64);
    loop {
        if limited.read_buf(&mut head).await? == 0 {
            return Ok((head.len() >= HEAD_SIZE_BYTES_MAX).then_some(None));
        }
        if head.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
            return Ok(Some(Some(head)));
        }
    }
}

/// Reads a request.
pub(crate) fn asked(head: &[u8]) -> Result<Asked, Status> {
    let path = path_of(head)?.to_owned();
    Ok(Asked { path, login: login_of(head) })
}

/// Who asks (RFC 7617).
fn login_of(head: &[u8]) -> Option<BasicLogin> {
    let mut headers = std::str::from_utf8(head).ok()?.split("\r\n").skip(1);
    let value = headers.find_map(|header| {
        let (name, value) = header.split_once(':')?;
        name.eq_ignore_ascii_case("Authorization").then_some(value.trim())
    });
    let (scheme, text) = value?.split_once(' ')?;
    let is_basic = scheme.eq_ignore_ascii_case("Basic");
    let decoded = BASE64.decode(text.trim()).ok().filter(|_| is_basic)?;
    let (user, password) = std::str::from_utf8(&decoded).ok()?.split_once(':')?;
    Some(BasicLogin { user: user.to_owned(), password: password.to_owned() })
}

/// The path that a request asks for, without its query.
fn path_of(head: &[u8]) -> Result<&str, Status> {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = std::str::from_utf8(line).map_err(|_| Status::BadRequest)?;
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(Status::BadRequest);
    };
    if !version.starts_with("HTTP/1.") || !target.starts_with('/') {
        return Err(Status::BadRequest);
    }
    if method != "GET" {
        return Err(Status::MethodNotAllowed);
    }
    Ok(target.split('?').next().unwrap_or(target))
}

async fn write(stream: &mut (impl AsyncWrite + Unpin), page: &Page) -> io::Result<()> {
    let allow = match page.status {
        Status::MethodNotAllowed => "Allow: GET\r\n",
        Status::Unauthorized => "WWW-Authenticate: Basic realm=\"meridian\", charset=\"UTF-8\"\r\n",
        _ => "",
    };
    let head = format!(
        "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{allow}\
         Cache-Control: no-store\r\nConnection: close\r\n\r\n",
        page.status.line(),
        page.content_type,
        page.body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(&page.body).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::duplex;

    use super::*;

    /// Sends `request`, then nothing more; returns all that comes back.
    async fn told(request: &[u8]) -> (io::Result<()>, String) {
        let (mut client, server) = duplex(64 << 10);
        client.write_all(request).await.unwrap();
        let pages = |asked: Asked| {
            std::future::ready(match asked.path.as_str() {
                "/known" => Page::ok("text/plain", Bytes::from_static(b"content")),
                _ => Page::refusal(Status::NotFound),
            })
        };
        let served = serve(server, pages).await;
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        (served, answer)
    }

    #[tokio::test]
    async fn a_page_is_sent_whole() {
        let (served, answer) = told(b"GET /known?a=1 HTTP/1.1\r\nHost: x\r\n\r\n").await;
        served.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"), "{answer}");
        assert!(answer.contains("Content-Length: 7\r\n"));
        assert!(answer.ends_with("Connection: close\r\n\r\ncontent"));
    }

    #[tokio::test]
    async fn everything_else_is_refused_by_its_name() {
        let long = [b"GET /known HTTP/1.1\r\nX: ".as_slice(), &[b'x'; 9000]].concat();
        for (request, status) in [
            (b"GET /other HTTP/1.1\r\n\r\n".as_slice(), "404"),
            (b"POST /known HTTP/1.1\r\n\r\n", "405"),
            (b"GET /known HTTP/2\r\n\r\n", "400"),
            (b"GET http://x/known HTTP/1.1\r\n\r\n", "400"),
            (b"\xff\xff\r\n\r\n", "400"),
            (&long, "431"),
        ] {
            let (served, answer) = told(request).await;
            served.unwrap();
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{status}: {answer}");
        }
    }

    #[test]
    fn who_asks_is_read_or_nobody() {
        let login = |header: &str| {
            let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{header}\r\n\r\n");
            asked(head.as_bytes()).expect("a request").login.map(|it| (it.user, it.password))
        };
        let basic = BASE64.encode("al:a:b");
        let al = Some(("al".to_owned(), "a:b".to_owned()));
        assert_eq!(login(&format!("Authorization: Basic {basic}")), al);
        assert_eq!(login(&format!("authorization:basic  {basic} ")), al);
        for header in [
            "X: y".to_owned(),
            format!("Authorization: Bearer {basic}"),
            "Authorization: Basic".to_owned(),
            "Authorization: Basic !".to_owned(),
            format!("Authorization: Basic {}", BASE64.encode("al")),
            format!("Authorization: Basic {}", BASE64.encode(b"\xff:\xff")),
        ] {
            assert_eq!(login(&header), None, "{header}");
        }
        let shown = BasicLogin { user: "al".to_owned(), password: "hush".to_owned() };
        assert!(!format!("{shown:?}").contains("hush"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_says_nothing_is_left() {
        let (served, answer) = told(b"GET /known HTTP/1.1\r\n").await;
        assert_eq!(served.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(answer, "");
    }

    proptest! {
        #[test]
        fn any_bytes_have_an_answer(head in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(asked) = asked(&head) {
                prop_assert!(asked.path.starts_with('/') && head.starts_with(b"GET /"));
            }
        }
    }
}
