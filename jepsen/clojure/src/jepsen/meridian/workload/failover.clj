(ns jepsen.meridian.workload.failover
  "A topic that moves between two clusters under load, again and again:

      switch   `mirror switchover`
      kill     kill -9 of all of the writer's side; `mirror failover`; it comes
               back and takes records as if nothing had happened, of every other
               producer; `mirror rejoin`
      cut      the same, but the way between the sides is cut: the old side takes
               records all the time

  Each client is a source whose records are numbered; the topic drops what it has
  already (meridian.dedup=source). After each move all that may not be there, and
  what was acknowledged last, is sent again to the new writer, as applications do.

  Judged record by record: what was acknowledged and mirrored is there once, in its
  place; what was cut off is in the topic of what diverged, and nothing else; the
  forecast is right."
  (:require [clojure.set :as set]
            [clojure.tools.logging :refer [info]]
            [jepsen [checker :as checker]
                    [client :as client]
                    [control :as c]
                    [db :as jdb]
                    [generator :as gen]
                    [history :as h]
                    [nemesis :as n]
                    [random :as rand]
                    [util :as util]]
            [jepsen.meridian [db :as db]
                             [federation :as federation :refer [other topic]]
                             [kafka :as kafka]
                             [nemesis :as nemesis]
                             [topology :as topology]]
            [clj-commons.slingshot :refer [try+ throw+]])
  (:import (org.apache.kafka.clients.producer KafkaProducer)))

(def diverged "Where a rejoin keeps what only the old side has."
  (str topic ".diverged"))

(def batch-max "Records that an operation adds, at most." 5)

(def window-count "Records that a source sends again after a move." 25)

(def seconds-per-round 45)

(def steady-seconds
  "For how long producers write before their side is lost: forecasts go by the pace
  of up to twenty seconds."
  22)

(def numbers-per-source 1000000)

;; Where to write

(defn initial-way
  "Where producers write: how many moves there were, the side that counts, and
  the one that takes records of every other source though it counts no more."
  []
  {:era 0, :writer :west, :stray nil})

(defn- side-for [{:keys [writer stray]} source]
  (if (and stray (odd? source)) stray writer))

;; Client

(defn- follow!
  "Has a source go where the way leads. Whoever was promoted may not have what was
  acknowledged before: the window is to be sent again. A source that stays behind,
  or comes from there, leaves what it was not answered."
  [{:keys [state way source]} test]
  (let [{:keys [era] :as way} @way
        side (side-for way source)]
    (when (not= [era side] ((juxt :era :side) @state))
      (some-> (:producer @state) kafka/close-producer!)
      (swap! state
             (fn [{:keys [unanswered window stayed?] :as state}]
               (let [stays? (and (odd? source) (= side (:stray way)))]
                 (assoc state
                        :era era, :side side, :stayed? stays?
                        :window []
                        :unanswered (if (or stays? stayed?)
                                      []
                                      (into window unanswered))
                        :producer nil)))))
    (when-not (:producer @state)
      (swap! state assoc :producer (federation/producer test side nil)))))

(defn- headers
  "What names a record's source, and its number there."
  [n]
  [["meridian-producer-id" (str "source-" (quot n numbers-per-source))]
   ["meridian-seqno" (str (mod n numbers-per-source))]])

(defn- send!
  "Sends what was not answered yet, and new records. What a source sends goes to
  one partition, in order: after an error all that follows is sent again, too."
  [{:keys [state source] :as client} test {:keys [value] :as op}]
  (follow! client test)
  (let [{:keys [era side next unanswered ^KafkaProducer producer]} @state
        new       (range next (+ next value))
        partition (mod source (:key-count test))
        numbers   (into (vec unanswered) new)
        _         (swap! state assoc :next (+ next value) :unanswered numbers)
        {:keys [sends error]} (federation/send! producer topic
                                                (map (partial vector partition) numbers)
                                                headers)
        acked     (take-while #(nth % 2) sends)
        resent?   (set unanswered)]
    (swap! state (fn [state]
                   (-> state
                       (update :window #(vec (take-last window-count
                                                        (into % (map second acked)))))
                       (assoc :unanswered (vec (drop (count acked) numbers))))))
    (when error
      ; Its producer id may be at odds with the partition for good.
      (kafka/close-producer! producer)
      (swap! state assoc :producer nil))
    (cond-> (assoc op :type (if error :info :ok)
                   :value {:era era, :side side
                           ; Of a batch of duplicates the first one's place is told.
                           :sends (mapv (fn [[partition n offset]]
                                          [partition n (if (and offset (resent? n))
                                                         :somewhere
                                                         offset)])
                                        sends)})
      error (assoc :error error))))

(defn- look!
  "All of a topic at the side that writes, or at the other one."
  [test {:keys [writer]} {:keys [value] :as op}]
  (let [{:keys [of whose]} value
        side (case whose :writer writer, :other (other writer))]
    (assoc op :type :ok
           :value (assoc value :side side
                         :log (if (federation/there? test side of)
                    (federation/read-all! test side of "read_uncommitted")
                    {})))))

(defonce ^:private sources (atom 0))

(defrecord Client [federated way source state]
  client/Client
  (open! [this _test _node]
    (let [source (swap! sources inc)]
      (assoc this :source source
             :state (atom {:next (* numbers-per-source source)
                           :window [], :unanswered []}))))

  (setup! [_ test]
    (locking federated
      (when-not @federated
        (federation/federate! test {"meridian.dedup" "source"})
        (reset! federated true))))

  (invoke! [this test {:keys [f] :as op}]
    (try+
      (case f
        :send (send! this test op)
        :look (look! test @way op))
      ; Nothing was sent, or nothing was read.
      (catch Object e
        (assoc op :type :fail
               :error (if (instance? Throwable e) (federation/error e) e)))))

  (teardown! [_ _test])

  (close! [_ _test]
    (some-> (:producer @state) kafka/close-producer!))

  ; What it has not been answered is to be sent by nobody else.
  client/Reusable
  (reusable? [_ _test] true))

;; Moves

(defn- ends
  "Where the topic ends at a side."
  [test side]
  (with-open [c (federation/consumer test side "read_uncommitted")]
    (federation/ends c topic (:key-count test))))

(defn- nodes-of [test side]
  (:nodes (get (topology/clusters test) side)))

(defn- lose-source!
  "Takes the writer's side from the mirror's, when that can forecast what is lost:
  one that has just begun says that it cannot tell."
  [db partitioner test {:keys [writer]} how]
  (federation/await-status test (other writer) 60
                           (fn [{:keys [state source_end_offset source_records_per_second]}]
                             (and (= "mirroring" state) source_end_offset
                                  source_records_per_second)))
  (case how
    :kill (c/on-nodes test (nodes-of test writer) (partial jdb/kill! db))
    :cut  (n/invoke! partitioner test {:f :start
                                       :value (nemesis/between-clusters test)})))

(defn- forecast!
  "What would be lost, as soon as the source does not answer, and when that was
  asked: it can take seconds to find out, and is told as of their beginning."
  [test side]
  (util/await-fn
    (fn []
      (let [at (System/currentTimeMillis)
            {:keys [said]} (db/command! test side "mirror" "failover" topic "--dry-run")]
        (when-not (false? (:is_source_reachable said))
          (throw+ {:type ::source-answers, :said said}))
        (-> (:lost said)
            (select-keys [:seen_records :unseen_records_estimate :unheard_ms])
            (assoc :at at))))
    {:timeout 60000, :retry-interval 300}))

(defn- fail-over!
  "Forecasts, promotes, and leads producers to the other side."
  [test way how]
  (let [{:keys [era writer]} @way
        to       (other writer)
        forecast (forecast! test to)
        _        (federation/operate! test to ["mirror" "failover" topic "--yes"] 60 :is_promoted)
        ends     (util/await-fn #(ends test to) {:timeout 30000})]
    (reset! way {:era (inc era), :writer to, :stray writer})
    {:era (inc era), :from writer, :to to, :how how, :ends ends, :forecast forecast}))

(defn- restore!
  "Brings the old side back, and waits until the promoted side sees that there are
  two writers."
  [db partitioner test {:keys [writer]} how]
  (let [old (other writer)]
    (case how
      :kill (c/on-nodes test (nodes-of test old) (partial jdb/start! db))
      :cut  (n/invoke! partitioner test {:f :stop}))
    (->> (federation/await-status test writer 90 (comp #{"both-promoted"} :state))
         (map :state) frequencies)))

(defn- rejoin!
  "Makes the old side a mirror of the promoted one."
  [test {:keys [writer]}]
  (let [old  (other writer)
        said (federation/operate! test old
                                  ["mirror" "rejoin" topic "--link" (name writer) "--yes"]
                                  90 :is_done)]
    {:side old, :records (:records said)}))

(defn- switch-over!
  "Has the mirror's side take over in good order."
  [test way]
  (let [{:keys [era writer]} @way
        to   (other writer)
        said (:said (db/command! test to "mirror" "switchover" topic))]
    (when (= "switched" (:outcome said))
      (reset! way {:era (inc era), :writer to, :stray nil}))
    {:era (inc era), :from writer, :to to, :how :switch, :outcome (:outcome said)}))

(defn- mover
  "A nemesis that moves the topic."
  [db way partitioner]
  (reify
    n/Reflection
    (fs [_] #{:lose-source :fail-over :restore :close-old :rejoin :switch-over :follow})

    n/Nemesis
    (setup! [_ test] (mover db way (n/setup! partitioner test)))

    (invoke! [_ test {:keys [f value] :as op}]
      (assoc op :value
             (case f
               :lose-source (do (lose-source! db partitioner test @way value) value)
               :fail-over   (fail-over! test way value)
               :restore     (restore! db partitioner test @way value)
               :close-old   (swap! way assoc :stray nil)
               :rejoin      (rejoin! test @way)
               :switch-over (switch-over! test way)
               :follow      (->> (federation/await-status test (other (:writer @way)) 90
                                                          (comp #{"mirroring"} :state))
                                 (map :state) frequencies))))

    (teardown! [_ test] (n/teardown! partitioner test))))

;; Generator

(defn- sends [_ _] {:f :send, :value (inc (rand/long batch-max))})

(defn- during
  "Producers write while the topic is moved, and for some seconds more."
  [rate seconds steps]
  (gen/any (gen/clients (gen/time-limit seconds (gen/stagger (/ rate) sends)))
           (gen/nemesis steps)))

(defn- look [whose of]
  (gen/clients {:f :look, :value {:whose whose, :of of}}))

(defn- op [f value] {:type :info, :f f, :value value})

(defn- round
  "Operations of one move, and all that is looked at."
  [rate how]
  (if (= :switch how)
    (gen/phases
      (during rate 12 [(op :follow nil) (gen/sleep (+ 1 (rand/long 3)))
                       (op :switch-over nil)])
      (look :writer topic))
    (gen/phases
      (during rate 40 [(op :follow nil) (gen/sleep (+ steady-seconds (rand/long 4)))
                       (op :lose-source how) (gen/sleep (rand/long 3))
                       (op :fail-over how)
                       (gen/sleep (+ 1 (rand/long 4)))
                       (op :restore how)])
      (gen/nemesis (op :close-old nil))
      (look :other topic)
      (during rate 5 [(op :rejoin nil)])
      (look :other diverged)
      (look :writer topic))))

(defn- play
  "Moves of all kinds in turns, one for about each `seconds-per-round` of the time
  limit; then the mirror follows."
  [{:keys [time-limit rate]}]
  (let [rate (if (zero? rate) 200 rate)]
    (gen/phases
      (->> (cycle [:switch :kill :cut])
           (take (max 1 (quot time-limit seconds-per-round)))
           (map (partial round rate)))
      (gen/nemesis (op :follow nil))
      (look :writer topic)
      (look :other topic))))

;; Checker

(defn- original
  "A record of the topic of what diverged as it was at the old side."
  [[_ timestamp key value headers]]
  (let [[added own] (split-at 7 headers)]
    [(parse-long (get (into {} added) "meridian-diverged-offset"))
     timestamp key value
     (mapv (fn [[name value]]
             [({"meridian-diverged-source" "meridian-producer-id"
                "meridian-diverged-seqno"  "meridian-seqno"} name name)
              value])
           own)]))

(defn- records
  "All of a log that f says of a partition and an offset: [[partition record] ...]"
  [log f]
  (vec (for [[partition {:keys [records]}] log
             [offset :as record] records
             :when (f partition offset)]
         [partition record])))

(defn- rounds
  "Moves that were made, in order, each with the first look of each kind after it
  under [whose of]."
  [history]
  (reduce (fn [rounds {:keys [f value type]}]
            (cond
              (and (#{:fail-over :switch-over} f) (:era value))
              (conj rounds value)

              (and (= :look f) (= :ok type) (seq rounds))
              (update-in rounds [(dec (count rounds)) ((juxt :whose :of) value)]
                         #(or % (:log value)))

              :else rounds))
          []
          history))

(defn- acks
  "What producers were told: maps of :era, :side, :partition, :number, :offset."
  [history]
  (for [{:keys [f value type]} history
        :when (and (= :send f) (#{:ok :info} type))
        :let [{:keys [era side sends]} value]
        [partition number offset] sends
        :when offset]
    {:era era, :side side, :partition partition, :number number, :offset offset}))

(defn- cut-by
  "The failover that cut an acknowledged record off, nil if none did: of the old
  side, or before it and not mirrored."
  [failovers {:keys [era side partition offset]}]
  (first (filter (fn [{:keys [from ends] :as failover}]
                   (and (= side from)
                        (number? offset)
                        (<= (get ends partition) offset)
                        (<= era (:era failover))))
                 failovers)))

(defn- is-there?
  "Whether a log has a record as it was acknowledged; its place may be unknown."
  [places {:keys [partition number offset]}]
  (let [[[p o [_ _ & content]] & more] (get places number)]
    (and p (empty? more)
         (= partition p)
         (or (= :somewhere offset) (= offset o))
         (= (federation/content number)
            (update (vec content) 2 (comp vec (partial drop 2)))))))

(defn- places
  "A map of numbers to where a log has them: [[partition offset record] ...]."
  [log]
  (reduce (fn [places [partition record]]
            (update places (federation/number record) (fnil conj [])
                    [partition (first record) record]))
          {}
          (records log (constantly true))))

(defn- doubled [log]
  (for [[number found] (places log) :when (next found)]
    [:doubled [number (mapv pop found)]]))

(defn- ack-anomalies
  "What producers were told that is not in the log that counts in the end, nor cut
  off."
  [rounds final acks]
  (let [failovers (remove (comp #{:switch} :how) rounds)
        there     (places final)
        cut-off   (into {} (for [{:keys [era ends] :as failover} failovers]
                             [era (places (get failover [:other topic]))]))]
    (for [ack acks
          :let [{:keys [era]} (cut-by failovers ack)]
          :when (not (if era
                       (is-there? (get cut-off era) ack)
                       (or (is-there? there ack)
                           (and (= :somewhere (:offset ack))
                                (some #(is-there? % ack) (vals cut-off))))))]
      [(if era :lost-at-the-old-side :lost) ack])))

(defn- differences
  "What is in one of two collections of records only."
  [type place a b]
  (let [[a b] (map set [a b])
        only  (concat (set/difference a b) (set/difference b a))]
    (when (seq only)
      [[type (conj place (count only) (vec (take 3 (sort-by str only))))]])))

(defn- cut-off
  "What the old side of a failover had, and the promoted one had not."
  [{:keys [ends] :as failover}]
  (records (get failover [:other topic])
           (fn [partition offset] (<= (get ends partition) offset))))

(defn- at-forecast
  "How many records had been cut off when it was asked how many there would be."
  [{:keys [forecast]} cut]
  (count (filter (fn [[_ [_ timestamp]]] (<= timestamp (:at forecast))) cut)))

(defn- forecast-anomalies
  "Whether as many records were cut off as the forecast said that there might be.
  `slack` is what was on its way when it was asked for."
  [{:keys [era forecast] :as failover} cut slack]
  (let [{:keys [seen_records unseen_records_estimate]} forecast
        outcome (at-forecast failover cut)]
    (cond
      (nil? unseen_records_estimate)
      [[:no-forecast [era forecast]]]

      (not (<= (- seen_records slack)
               outcome
               (+ seen_records unseen_records_estimate slack)))
      [[:forecast [era forecast outcome]]])))

(defn- failover-anomalies
  "What a failover and the rejoin after it broke. `kept` is where the topic of what
  diverged at that side ended before."
  [{:keys [era ends] :as failover} kept slack]
  (let [mirrored? (fn [partition offset] (< offset (get ends partition)))
        old       (get failover [:other topic])
        cut       (cut-off failover)
        new-there (records (get failover [:other diverged])
                           (fn [partition offset] (<= (get kept partition 0) offset)))]
    (concat
      (differences :not-a-prefix [era]
                   (records old mirrored?)
                   (records (get failover [:writer topic]) mirrored?))
      (differences :diverged [era]
                   cut
                   (map #(update % 1 original) new-there))
      (when (< (count (set new-there)) (count new-there))
        [[:diverged-twice [era]]])
      (when (not= (count cut) (count new-there))
        [[:diverged-count [era (count cut) (count new-there)]]])
      (forecast-anomalies failover cut slack))))

(defn- kept-before
  "Where the topic of what diverged at each failover's old side ended before it."
  [failovers]
  (reductions (fn [kept {:keys [from] :as failover}]
                (assoc kept from (update-vals (get failover [:other diverged]) :to)))
              {}
              failovers))

(defn check
  "Judges completions of a history, with those of the nemesis."
  [history]
  (let [history   (vec history)
        rounds    (rounds history)
        failovers (remove (comp #{:switch} :how) rounds)
        acks      (acks history)
        sources   (count (distinct (map #(quot (:number %) numbers-per-source) acks)))
        slack     (* sources batch-max)
        [final mirror] (->> history
                            (filter #(and (= :look (:f %)) (= :ok (:type %))
                                          (= topic (:of (:value %)))))
                            (take-last 2) (map (comp :log :value)))
        wanted    [[:other topic] [:other diverged] [:writer topic]]
        whole?    (and final mirror (seq rounds)
                       (every? #(get % [:writer topic]) rounds)
                       (every? #(every? (partial get %) wanted) failovers))
        failed    (for [{:keys [f exception]} history :when exception]
                    [:not-done [f (:cause exception)]])
        found     (concat
                    failed
                    (for [{:keys [how outcome era]} rounds
                          :when (and (= :switch how) (not= "switched" outcome))]
                      [:not-switched [era outcome]])
                    (when whole?
                      (concat
                        (mapcat doubled (cons final (keep #(get % [:writer topic]) rounds)))
                        (ack-anomalies rounds final acks)
                        (mapcat (fn [failover kept]
                                  (failover-anomalies failover (get kept (:from failover))
                                                      slack))
                                failovers (kept-before failovers))
                        (differences :not-a-prefix [:end]
                                     (records mirror (constantly true))
                                     (records final (fn [p offset]
                                                      (< offset (:to (get mirror p)))))))))
        by-type   (update-vals (group-by first found) #(mapv second %))]
    {:valid?        (cond (seq found)   false
                          (not whole?)  :unknown
                          :else         true)
     :anomaly-types (vec (sort (keys by-type)))
     :anomalies     (update-vals by-type (partial take 8))
     :anomaly-count (count found)
     :moves         (frequencies (map :how rounds))
     :acked         (count acks)
     :records       (count (records final (constantly true)))
     :failovers     (for [{:keys [era how forecast] :as failover} failovers
                          :let [cut (cut-off failover)]]
                      {:era         era
                       :how         how
                       :seen        (:seen_records forecast)
                       :unseen      (:unseen_records_estimate forecast)
                       :at-forecast (at-forecast failover cut)
                       :cut-off     (count cut)})}))

(defn checker []
  (reify checker/Checker
    (check [_ _test history _opts]
      (check (remove h/invoke? history)))))

(defn workload [opts]
  (let [way (atom (initial-way))]
    {:client  (map->Client {:federated (atom false), :way way})
     :mover   (fn [db] (mover db way (n/partitioner)))
     :play    (play opts)
     :checker (checker)
     :mirror  topic}))
