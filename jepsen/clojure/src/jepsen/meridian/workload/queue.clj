(ns jepsen.meridian.workload.queue
  "The log as a queue: sends and polls, judged by jepsen.tests.kafka. With
  :sub-via :assign consumers choose their partitions, with :subscribe the group
  does; with :txn? sends and polls are in transactions that also commit the
  group's offsets.

  Keys of the workload are partitions: key k is partition (mod k p) of topic
  t(quot k p)."
  (:require [clojure.tools.logging :refer [info]]
            [jepsen [checker :as checker]
                    [client :as client]
                    [generator :as gen]
                    [random :as rand]
                    [util :as util]]
            [jepsen.tests.kafka :as jtk]
            [jepsen.meridian [exactly-once :as exactly-once]
                             [kafka :as kafka]]
            [clj-commons.slingshot :refer [try+ throw+]])
  (:import (java.util Collection)
           (org.apache.kafka.clients.consumer ConsumerRebalanceListener
                                              KafkaConsumer
                                              OffsetAndMetadata)
           (org.apache.kafka.clients.producer KafkaProducer)
           (org.apache.kafka.common TopicPartition)))

(def partitions-per-topic 2)

(def abort-probability
  "How likely a transaction is given up at each of its steps."
  1/50)

(defn k->topic [k] (str "t" (quot k partitions-per-topic)))

(defn k->tp [k]
  (kafka/topic-partition (k->topic k) (mod k partitions-per-topic)))

(defn tp->k [^TopicPartition tp]
  (+ (* partitions-per-topic (parse-long (subs (.topic tp) 1)))
     (.partition tp)))

(defn- error
  "What the history says of an exception."
  [^Throwable t]
  [(keyword (.getSimpleName (class t))) (.getMessage t)])

;; Micro-operations

(defn- ensure-topics!
  "Creates the topics of keys that nobody has created yet."
  [{:keys [admin topics]} ks]
  (doseq [topic (distinct (map k->topic ks))
          :when (not (contains? @topics topic))]
    (kafka/create-topic! @admin topic partitions-per-topic)
    (swap! topics conj topic)))

(defn- mop!
  "Does one micro-operation; returns it with what it found."
  [{:keys [consumer producer] :as client} {:keys [poll-ms]} mop]
  (case (first mop)
    :poll (try
            [:poll (into (sorted-map)
                         (update-keys (kafka/poll! consumer poll-ms) tp->k))]
            ; Nothing to poll from: not assigned or subscribed yet.
            (catch IllegalStateException e
              (if (re-find #"not subscribed" (str (.getMessage e)))
                [:poll {}]
                (throw e))))
    :send (let [[_ k v] mop]
            (ensure-topics! client [k])
            [:send k [(kafka/send! producer (k->tp k) v) v]])))

(defn- mops!
  "Does all micro-operations of an op. Keeps in an atom what was done so far: a
  send may have its offset though the transaction fails after it."
  [test client op mops done]
  (doseq [[i mop] (map-indexed vector mops)]
    (when (and (:txn? test) (< (rand/double) abort-probability))
      (throw+ {:type ::intentional-abort}))
    (swap! done assoc i (mop! client op mop))))

(defn- polled
  "Offsets that micro-operations polled: a map of keys to offsets, made by f of
  the vector of a poll's offsets and what an earlier poll of it gave, or nil."
  [mops f]
  (reduce (fn [offsets [k pairs]]
            (update offsets k f (mapv first pairs)))
          {}
          (mapcat (fn [[f m]] (when (= :poll f) m)) mops)))

(defn- moved
  "Keys of partitions that the group took from the consumer in this operation."
  [{:keys [rebalances]}]
  (into #{}
        (comp (filter (comp #{:revoked :lost} :event))
              (mapcat :partitions)
              (map tp->k))
        @rebalances))

(defn- rewind!
  "Seeks back to where the consumer was before micro-operations that failed, so
  that their records are polled again. A partition that moved meanwhile is read
  from where the group is, even if it came back: another member may have consumed
  what was polled."
  [{:keys [^KafkaConsumer consumer] :as client} mops]
  (let [moved (moved client)]
    (doseq [[k offset] (polled mops (fn [old offsets] (or old (first offsets))))
            :when (not (moved k))]
      (try (.seek consumer ^TopicPartition (k->tp k) (long offset))
           ; The group has given the partition to somebody else.
           (catch IllegalStateException _)))))

(defn- next-offsets
  "Positions after all that was polled, as Kafka commits them."
  [mops]
  (into {}
        (for [[k offset] (polled mops (fn [old offsets] (or (peek offsets) old)))]
          [(k->tp k) (OffsetAndMetadata. (inc offset))])))

;; Operations

(defn- plain!
  "Micro-operations without a transaction. Sends whose fate is not known are
  :info; polls have no effect, so they just fail."
  [test {:keys [^KafkaConsumer consumer subscribed?] :as client} {:keys [f] :as op} done]
  (try
    (mops! test client op (:value op) done)
    (if (and @subscribed? (= :poll f))
      ; What was polled was polled, committed or not.
      (try (.commitSync consumer)
           (assoc op :type :ok)
           (catch RuntimeException e
             (assoc op :type :ok, :error [:commit (error e)])))
      (assoc op :type :ok))
    (catch Exception e
      (rewind! client @done)
      (assoc op :type (if (= :poll f) :fail :info), :error (error e)))))

(defn- transaction!
  "Micro-operations in a transaction, with the offsets of what they polled. It
  :fails if it was never asked to commit, or if it is known to be aborted; the
  process ends unless the abort was confirmed."
  [test {:keys [^KafkaProducer producer ^KafkaConsumer consumer] :as client} op done]
  (let [committing? (atom false)]
    (try+
      (.beginTransaction producer)
      (mops! test client op (:value op) done)
      (let [offsets (next-offsets @done)]
        ; The member's generation is the new one: the coordinator would take what
        ; another member has consumed, too.
        (when (some (moved client) (map tp->k (keys offsets)))
          (throw+ {:type ::partitions-moved}))
        (when (seq offsets)
          (.sendOffsetsToTransaction producer offsets (.groupMetadata consumer))))
      (reset! committing? true)
      (.commitTransaction producer)
      (assoc op :type :ok)
      (catch Object e
        (rewind! client @done)
        (let [cause (if (instance? Throwable e) (error e) e)
              aborted (try (.abortTransaction producer)
                           nil
                           (catch RuntimeException e (error e)))]
          (cond
            ; The coordinator says that it is aborted.
            (nil? aborted)
            (assoc op :type :fail, :error [:aborted cause])

            ; Nobody asked for a commit: it will be aborted.
            (not @committing?)
            (assoc op :type :fail, :error [:not-committed cause aborted]
                   :end-process? true)

            :else
            (assoc op :type :info, :error [:in-doubt cause aborted])))))))

(defn- log-rebalances
  "Adds what rebalances there were in an operation to its completion."
  [{:keys [rebalances]} op]
  (let [log @rebalances]
    (if (empty? log)
      op
      (assoc op :rebalance-log
             (mapv (fn [{:keys [event partitions]}]
                     {:event event, :keys (mapv tp->k partitions)})
                   log)))))

;; Transactional ids

(def zombie-probability
  "How likely a new client takes the transactional id of a living one, which is
  fenced by it."
  1/16)

(defn take-id
  "Takes a transactional id out of a pool {:free ids, the last freed first, :held
  ids, :made count}. Mostly one that a client before has left, whose last
  transaction may still be under way: the two must not mix. `zombie` is nil, or a
  number that says whose id to take. Returns the pool with the :taken id."
  [{:keys [free held made] :as pool} zombie]
  (cond
    (and zombie (seq held))
    (assoc pool :taken (nth (sort held) (mod zombie (count held))))

    (seq free)
    (let [id (peek free)]
      (assoc pool :free (pop free), :held (conj held id), :taken id))

    :else
    (let [id (str "jepsen-" made)]
      (assoc pool :made (inc made), :held (conj held id), :taken id))))

(defn give-back
  "Gives a transactional id back to its pool."
  [{:keys [free held] :as pool} id]
  (if (contains? held id)
    (assoc pool :free (conj free id), :held (disj held id))
    pool))

(def no-ids {:free '(), :held #{}, :made 0})

(defn- open-producer!
  "A producer, with a transactional id from the pool if there are transactions."
  [test node ids txn-id]
  (try (kafka/producer test node txn-id)
       (catch Throwable t
         (swap! ids give-back txn-id)
         (throw t))))

(defrecord Client [topics ids admin ^KafkaProducer producer txn-id
                   ^KafkaConsumer consumer rebalances subscribed?]
  client/Client
  (open! [this test node]
    (let [group? (or (:txn? test) (:subscribe (:sub-via test)))
          txn-id (when (:txn? test)
                   (let [zombie (when (< (rand/double) zombie-probability)
                                  (rand/long 1000))]
                     (:taken (swap! ids take-id zombie))))]
      (assoc this
             :txn-id      txn-id
             :producer    (open-producer! test node ids txn-id)
             :consumer    (kafka/consumer test node
                                          {:group-id (when group? kafka/group)})
             :admin       (delay (kafka/admin test node))
             :rebalances  (atom [])
             :subscribed? (atom false))))

  ; Later topics are created under faults, the first ones are there before.
  (setup! [this test]
    (locking topics
      (util/await-fn #(ensure-topics! this (range (:key-count test)))
                     {:timeout 120000, :log-message "Waiting for topics"})))

  (invoke! [this test {:keys [f value] :as op}]
    (case f
      :assign
      (try
        (ensure-topics! this value)
        (let [tps (mapv k->tp value)]
          (.assign consumer tps)
          (when (:seek-to-beginning? op)
            (.seekToBeginning consumer tps))
          (assoc op :type :ok))
        (catch Exception e
          (assoc op :type :fail, :error (error e))))

      :subscribe
      (try
        (ensure-topics! this value)
        (.subscribe consumer ^Collection (vec (distinct (map k->topic value)))
                    ^ConsumerRebalanceListener (kafka/rebalance-listener rebalances))
        (reset! subscribed? true)
        (assoc op :type :ok)
        (catch Exception e
          (assoc op :type :fail, :error (error e))))

      :crash
      (assoc op :type :info)

      :debug-topic-partitions
      (try
        (let [leaders (kafka/leaders @admin (distinct (map k->topic value)))]
          (assoc op :type :ok
                 :value (into (sorted-map)
                              (for [k value]
                                [k (get-in leaders [(k->topic k)
                                                    (mod k partitions-per-topic)])]))))
        (catch Exception e
          (assoc op :type :fail, :error (error e))))

      (:poll :send :txn)
      (let [done (atom (vec value))
            op   (update op :poll-ms #(or % (:poll-ms test)))]
        (reset! rebalances [])
        (-> (if (:txn? test)
              (transaction! test this op done)
              (plain! test this op done))
            (assoc :value @done)
            (->> (log-rebalances this))))))

  (teardown! [_ _test])

  (close! [_ _test]
    (kafka/close-producer! producer)
    (swap! ids give-back txn-id)
    (kafka/close-consumer! consumer)
    (when (realized? admin)
      (kafka/close! @admin))))

(defn client []
  (map->Client {:topics (atom #{}), :ids (atom no-ids)}))

;; Generator

(defrecord SubscribeFirst [how-many processes recent gen]
  gen/Generator
  (op [this test context]
    (when-let [[op gen'] (gen/op gen test context)]
      (let [mops?  (and (not= :pending op) (#{:poll :send :txn} (:f op)))
            recent (if mops?
                     (->> (for [[f k] (:value op) :when (= :send f)] k)
                          (concat recent) distinct (take-last how-many) vec)
                     recent)]
        (if (and mops? (not (contains? processes (:process op))))
          [(gen/fill-in-op {:f :subscribe, :value recent
                            :process (:process op), :time (:time op)}
                           context)
           (assoc this :recent recent)]
          [op (assoc this :recent recent, :gen gen')]))))

  (update [this test context {:keys [f type process] :as event}]
    (let [processes (cond
                      (and (= :ok type) (= :subscribe f)) (conj processes process)
                      (= :info type)                      (disj processes process)
                      :else                               processes)]
      (assoc this :processes processes
                  :gen       (gen/update gen test context event)))))

(defn subscribe-first
  "Wraps a generator: a process subscribes to as many of the keys that were sent
  to last before it does anything else. Otherwise many clients of a run with
  crashes would poll nothing for most of their lives."
  [how-many gen]
  (SubscribeFirst. how-many #{} (vec (range how-many)) gen))

;; Checker

(def ^:private plot-realtime-lag! jtk/plot-realtime-lag!)

(defn- without-small-plots
  "A checker that leaves out jepsen.tests.kafka's plots of lag by single threads,
  keys and pairs of them: they are hundreds, and cost more than the verdict."
  [c]
  (reify checker/Checker
    (check [_ test history opts]
      (with-redefs [jtk/plot-realtime-lag!
                    (fn [test lags {:keys [subdirectory group-name] :as plot}]
                      (when-not (or subdirectory (= "thread-key" group-name))
                        (plot-realtime-lag! test lags plot)))]
        (checker/check c test history opts)))))

(defn workload
  "Options as for jepsen.tests.kafka/workload."
  [opts]
  (cond-> (assoc (jtk/workload opts)
                 :client   (client)
                 :checkers (exactly-once/checkers))
    true (update :checker without-small-plots)
    (= #{:subscribe} (:sub-via opts))
    (update :generator (partial subscribe-first (:key-count opts)))))
