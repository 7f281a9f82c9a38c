//! The half of a connection that answers requests, in their order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Buf, BytesMut};
use meridian_protocol::{EncodedFrame, Response, frame};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::{Close, Counts, InFlight};
use crate::kafka::Front;
use crate::kafka::dispatch::{self, Client, Reply};
use crate::kafka::memory::{Kind, Turn};

/// Answers up to this size are gathered into one write.
const GATHERED_BYTES_MAX: usize = 16 << 10;

pub(super) struct Writer<'a, W> {
    front: &'a Arc<Front>,
    stream: W,
    client: Arc<Client>,
    /// Small answers on their way.
    gathered: BytesMut,
    /// Requests taken out of the queue to begin them before their answer's turn; the last may be
    /// one that could not be.
    begun: VecDeque<InFlight>,
    counts: Arc<Counts>,
}

impl<'a, W: AsyncWrite + Unpin> Writer<'a, W> {
    pub(super) fn new(
        front: &'a Arc<Front>,
        stream: W,
        client: Arc<Client>,
        counts: Arc<Counts>,
    ) -> Self {
        let (gathered, begun) = (BytesMut::new(), VecDeque::new());
        Self { front, stream, client, gathered, begun, counts }
    }

    /// Answers all requests in order; ends when there will be no more.
    pub(super) async fn run(mut self, mut replies: mpsc::Receiver<InFlight>) -> Result<(), Close> {
        loop {
            let next = self.begun.pop_front().or_else(|| replies.try_recv().ok());
            let in_flight = match next {
                Some(in_flight) => in_flight,
                None => {
                    self.flush().await?;
                    match replies.recv().await {
                        Some(in_flight) => in_flight,
                        None => return Ok(()),
                    }
                }
            };
            let was_waiting = !in_flight.reply.is_begun();
            self.answer(in_flight).await?;
            self.counts.in_flight.fetch_sub(1, Ordering::Relaxed);
            if was_waiting {
                self.counts.waiting.fetch_sub(1, Ordering::Relaxed);
                self.begin_those_behind(&mut replies).await?;
                self.note_queue();
            }
        }
    }

    /// Begins what waited only for the request that was just answered: otherwise a connection that
    /// is never without requests would go on answering one after another.
    async fn begin_those_behind(
        &mut self,
        replies: &mut mpsc::Receiver<InFlight>,
    ) -> Result<(), Close> {
        while self.begun.back().is_none_or(|last| last.reply.is_begun())
            && let Ok(mut next) = replies.try_recv()
        {
            let was_waiting = !next.reply.is_begun();
            next.begin().await?;
            if was_waiting && next.reply.is_begun() {
                self.counts.waiting.fetch_sub(1, Ordering::Relaxed);
            }
            self.begun.push_back(next);
        }
        Ok(())
    }

    /// Of those that wait the first has its turn now; only others wait behind it.
    fn note_queue(&self) {
        match self.counts.waiting.load(Ordering::Relaxed) {
            0 | 1 => self.client.holder.on_done(Turn::Queue),
            _ => self.client.holder.await_client(Turn::Queue),
        }
    }

    async fn answer(&mut self, mut in_flight: InFlight) -> Result<(), Close> {
        in_flight.open().await?;
        let InFlight { api, version, correlation_id, reply, held, read_at } = in_flight;
        let response = match reply {
            Reply::Now(response) => response,
            Reply::Begun(mut answering) => match dispatch::ready_now(&mut answering).await {
                Some(response) => response,
                None => {
                    // Answers gathered so far need not wait for one that is not ready.
                    self.flush().await?;
                    answering.await
                }
            },
            Reply::Prompt(mut answering) | Reply::Later(mut answering) => {
                // No more answers than there is memory for.
                let mut room = self.client.holder.charge(Kind::Answers);
                if !room.try_take(0) {
                    self.flush().await?;
                    room.take(0).await;
                }
                match dispatch::ready_now(&mut answering).await {
                    Some(response) => response,
                    None => {
                        self.flush().await?;
                        answering.await
                    }
                }
            }
            Reply::None => return Ok(()),
            Reply::Close(code) => return Err(Close::Unacknowledged(code)),
            Reply::Unread(_) => unreachable!("it was opened"),
        };
        debug_assert_eq!(response.api(), api);
        self.front.metrics.on_answered(api, read_at.elapsed());
        drop(held);
        self.write(version, correlation_id, response).await
    }

    async fn write(
        &mut self,
        version: i16,
        correlation_id: i32,
        response: Response,
    ) -> Result<(), Close> {
        let charged = self.client.take_answer();
        let frame = frame::encode_response(version, correlation_id, &response)?;
        drop(response);
        let size_bytes = frame.remaining();
        self.front.metrics.on_sent(size_bytes);
        self.client.presence.on_sent(size_bytes);
        if size_bytes > GATHERED_BYTES_MAX {
            let mut charge = charged.unwrap_or_else(|| self.client.holder.charge(Kind::Answers));
            charge.set(size_bytes);
            self.flush().await?;
            return self.send(frame).await;
        }
        for segment in frame.segments() {
            self.gathered.extend_from_slice(segment);
        }
        if self.gathered.len() > GATHERED_BYTES_MAX {
            self.flush().await?;
        }
        Ok(())
    }

    /// Sends a frame in vectored writes, for as long as the client takes some of it in time.
    async fn send(&mut self, mut frame: EncodedFrame) -> Result<(), Close> {
        let limit = self.front.config.write_stall_timeout;
        let holder = &self.client.holder;
        holder.await_client(Turn::Read);
        while frame.has_remaining() {
            let written = timeout(limit, self.stream.write_buf(&mut frame)).await;
            match written.map_err(|_| Close::SlowReader)?? {
                0 => return Err(Close::Client),
                size_bytes => holder.on_progress(Turn::Read, size_bytes),
            }
        }
        holder.on_done(Turn::Read);
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), Close> {
        let limit = self.front.config.write_stall_timeout;
        let holder = &self.client.holder;
        if self.gathered.has_remaining() {
            holder.await_client(Turn::Read);
        }
        while self.gathered.has_remaining() {
            let written = timeout(limit, self.stream.write_buf(&mut self.gathered)).await;
            if written.map_err(|_| Close::SlowReader)?? == 0 {
                return Err(Close::Client);
            }
        }
        holder.on_done(Turn::Read);
        timeout(limit, self.stream.flush()).await.map_err(|_| Close::SlowReader)??;
        Ok(())
    }
}
