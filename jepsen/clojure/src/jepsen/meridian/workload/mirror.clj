(ns jepsen.meridian.workload.mirror
  "A topic of the west that the east mirrors, under faults on either side and
  between them. Idempotent producers, some of them with transactions, write in the
  west; readers follow the log on both sides, or go back in it.

  Whoever reads from offset a up to b of the mirror must have got what is there at
  the source: each look is judged like that, and also at the source, by all of it
  as it is read in the end. Then the mirror has to be as long as its source, too."
  (:require [jepsen [checker :as checker]
                    [client :as client]
                    [generator :as gen]
                    [history :as h]
                    [random :as rand]
                    [util :as util]]
            [jepsen.meridian [federation :as federation]
                             [kafka :as kafka]]
            [clj-commons.slingshot :refer [try+ throw+]])
  (:import (org.apache.kafka.clients.producer KafkaProducer)))

(def isolations ["read_committed" "read_uncommitted"])

(def sends-max "Records that an operation sends, at most." 5)

(def txn-probability "How likely sends are a transaction." 1/3)

(def abort-probability "How likely a transaction is given up in the end." 1/10)

(def read-ms "For how long an operation reads." 300)

(def catch-up-within "Seconds for the mirror to have all, when faults have ended." 40)

;; Client

(defn- transaction!
  "Sends in a transaction, which is given up if the operation says so. It :fails
  if it is known to be aborted."
  [^KafkaProducer p {:keys [value abort?] :as op}]
  (let [done (atom value)]
    (try+
      (.beginTransaction p)
      (let [{:keys [sends error]} (federation/send! p federation/topic value
                                                    (constantly nil))]
        (reset! done sends)
        (cond
          error  (throw+ {:type ::not-sent, :error error})
          abort? (throw+ {:type ::intentional-abort})))
      (.commitTransaction p)
      (assoc op :type :ok, :value @done)
      (catch Object e
        (let [cause (if (instance? Throwable e) (federation/error e) e)
              op    (assoc op :value @done)]
          (try (.abortTransaction p)
               (assoc op :type :fail, :error [:aborted cause])
               (catch RuntimeException e
                 (assoc op :type :info
                        :error [:in-doubt cause (federation/error e)]))))))))

(defn- plain!
  "Sends; what was not acknowledged may be there all the same."
  [p op]
  (let [{:keys [sends error]} (federation/send! p federation/topic (:value op)
                                                (constantly nil))]
    (cond-> (assoc op :type (if error :info :ok), :value sends)
      error (assoc :error error))))

;; Each thread's clients are made when they are needed first, on some node.
(defn- ensure-client!
  [clients what make]
  (or (get @clients what)
      (let [c (make)]
        (swap! clients assoc what c)
        c)))

(defonce ^:private transactional-ids (atom 0))

(defn- ensure-producer! [test {:keys [clients]} transactional?]
  (ensure-client! clients [:producer transactional?]
                  #(federation/producer
                     test :west
                     (when transactional?
                       (str "jepsen-" (swap! transactional-ids inc))))))

(defn- read!
  "Goes on reading where this client was, or from the beginning."
  [test {:keys [clients positions]} {:keys [value] :as op}]
  (let [{:keys [side isolation partition from-start?]} value
        place    [side isolation partition]
        from     (if from-start? 0 (get @positions place 0))
        consumer (ensure-client! clients [:consumer side isolation]
                                 #(federation/consumer test side isolation))
        read     (federation/read! consumer federation/topic partition from nil read-ms)]
    (swap! positions assoc place (:to read))
    (assoc op :type :ok, :value (merge value read))))

(defn- ends
  "Where the topic ends at a side, for each isolation."
  [test side]
  (into {} (for [isolation isolations]
             (with-open [c (federation/consumer test side isolation)]
               [isolation (federation/ends c federation/topic (:key-count test))]))))

(defn- catch-up!
  "Waits until no transaction is open and the mirror is as long as its source."
  [test]
  (let [begun (System/nanoTime)]
    (util/await-fn
      (fn []
        (let [[west east] (map (partial ends test) [:west :east])]
          (when-not (and (apply = (vals west)) (= west east))
            (throw+ {:type ::behind, :west west, :east east}
                    nil "the mirror is behind: %s %s" west east))
          {:ends    (get west "read_uncommitted")
           :seconds (util/nanos->secs (- (System/nanoTime) begun))}))
      {:timeout (* 1000 catch-up-within), :retry-interval 200})))

(defrecord Client [federated clients positions]
  client/Client
  (open! [this _test _node]
    (assoc this :clients (atom {}), :positions (atom {})))

  (setup! [_ test]
    (locking federated
      (when-not @federated
        (federation/federate! test {})
        (reset! federated true))))

  (invoke! [this test {:keys [f value] :as op}]
    (try+
      (case f
        :send     (plain! (ensure-producer! test this false) op)
        :txn      (transaction! (ensure-producer! test this true) op)
        :read     (read! test this op)
        :catch-up (assoc op :type :ok, :value (catch-up! test))
        :read-all (let [{:keys [side isolation]} value]
                    (assoc op :type :ok
                           :value (assoc value :log
                                         (federation/read-all!
                                           test side federation/topic isolation)))))
      ; Nothing was sent, or nothing was read.
      (catch Object e
        (assoc op :type :fail
               :error (if (instance? Throwable e) (federation/error e) e)))))

  (teardown! [_ _test])

  (close! [_ _test]
    (doseq [[[what] c] @clients]
      (case what
        :producer (kafka/close-producer! c)
        :consumer (kafka/close-consumer! c)))))

(defn client [] (map->Client {:federated (atom false)}))

;; Generator

(defn- sends
  "Operations that send records to one partition, or in a transaction to several;
  each has numbers that no other has."
  [partition-count]
  (for [i (range)]
    (let [txn?      (< (rand/double) txn-probability)
          partition (rand/long partition-count)]
      (cond-> {:f     (if txn? :txn :send)
               :value (vec (for [n (range (inc (rand/long sends-max)))]
                             [(if txn? (rand/long partition-count) partition)
                              (+ (* sends-max i) n)]))}
        txn? (assoc :abort? (< (rand/double) abort-probability))))))

(defn- reads [partition-count]
  (fn [_ _]
    {:f :read
     :value {:side        (rand/nth [:west :east :east])
             :isolation   (rand/nth isolations)
             :partition   (rand/long partition-count)
             :from-start? (< (rand/double) 1/50)}}))

(defn- generator [partition-count]
  (gen/mix [(sends partition-count) (reads partition-count)]))

(def ^:private final-generator
  (gen/phases
    {:f :catch-up}
    (for [side [:west :east], isolation isolations]
      {:f :read-all, :value {:side side, :isolation isolation}})))

;; Checker

(defn source
  "The source as it was read in the end: a map of [isolation partition] to
  {:to, :records}, the records by offset."
  [history]
  (into {}
        (for [{:keys [value]} history
              :when (= :west (:side value))
              [partition {:keys [to records]}] (:log value)]
          [[(:isolation value) partition]
           {:to to, :records (into (sorted-map) (map (juxt first identity) records))}])))

(defn- looks
  "All that was read: maps of :side, :isolation, :partition, :from, :to and
  :records."
  [history]
  (mapcat (fn [{:keys [f value]}]
            (case f
              :read     [value]
              :read-all (for [[partition read] (:log value)]
                          (assoc read :side (:side value), :partition partition
                                 :isolation (:isolation value)))
              nil))
          history))

(defn- look-anomaly
  "[type example] if what was read is not what is at the source, or nil."
  [source {:keys [side isolation partition from to records] :as look}]
  (let [all     (get source [isolation partition])
        wanted  (map val (subseq (:records all) >= from < to))
        found   (map first records)
        place   [side isolation partition from to]
        missing (remove (set found) (map first wanted))
        extra   (remove (set (map first wanted)) found)]
    (cond
      (< (:to all) to)                                [:beyond-the-source (conj place (:to all))]
      (not (apply < -1 found))                        [:not-ascending (conj place (vec found))]
      (= wanted records)                              nil
      (seq missing)                                   [:gap (conj place (vec (take 5 missing)))]
      (seq extra)                                     [:extra (conj place (vec (take 5 extra)))]
      :else [:changed (conj place (first (remove (fn [[a b]] (= a b))
                                                 (map vector wanted records))))])))

(defn- numbers
  "A map of the numbers of the source's records to where they are."
  [source isolation]
  (reduce (fn [places [[partition offset] record]]
            (update places (federation/number record) (fnil conj [])
                    [partition offset record]))
          {}
          (for [[[i partition] {:keys [records]}] source
                :when (= i isolation)
                [offset record] records]
            [[partition offset] record])))

(defn- send-anomalies
  "What producers were told that the source contradicts."
  [source history]
  (let [committed   (numbers source "read_committed")
        uncommitted (numbers source "read_uncommitted")
        read-as     (fn [places n] (first (get places n)))]
    (concat
      (for [[n places] uncommitted :when (next places)]
        [:doubled [n (mapv pop places)]])
      (for [{:keys [f type value]} history
            :when (and (#{:send :txn} f) (#{:ok :info} type))
            [partition n offset] value
            :when (and offset (or (= :send f) (= :ok type)))
            :let [[p o [_ _ & content]] (read-as committed n)]
            :when (not (and (= [partition offset] [p o])
                            (= (federation/content n) content)))]
        [:lost [n [partition offset] [p o content]]])
      (for [{:keys [f type value]} history
            :when (and (= :txn f) (= :fail type))
            [_ n] value
            :when (read-as committed n)]
        [:aborted-read n]))))

(defn check
  "Judges completions of a history."
  [history]
  (let [history (vec history)
        ok      (filter (comp #{:ok} :type) history)
        source  (source ok)
        looks   (looks ok)
        mirror  (filter (comp #{:east} :side) looks)
        final   (filter #(and (= :read-all (:f %)) (= :east (:side (:value %)))) ok)
        behind  (remove (comp #{:ok} :type) (filter (comp #{:catch-up} :f) history))
        whole?  (and (= (count isolations) (count (distinct (map first (keys source)))))
                     (= (count isolations) (count final))
                     (some (comp #{:catch-up} :f) history))
        found   (when whole?
                  (concat (keep (partial look-anomaly source) looks)
                          (send-anomalies source history)
                          (for [op behind] [:behind (:error op)])
                          (for [{:keys [error]} history
                                :when (= :OffsetOutOfRangeException (first error))]
                            [:went-back error])))
        by-type (update-vals (group-by first found) #(mapv second %))]
    {:valid?        (cond (seq found)   false
                          (not whole?)  :unknown
                          :else         true)
     :anomaly-types (vec (sort (keys by-type)))
     :anomalies     (update-vals by-type (partial take 8))
     :anomaly-count (count found)
     :mirror        {:looks   (count mirror)
                     :records (reduce + (map (comp count :records) mirror))}
     :source        {:looks   (- (count looks) (count mirror))
                     :records (count (numbers source "read_uncommitted"))}
     :caught-up     (some #(when (= :catch-up (:f %)) (:seconds (:value %))) ok)}))

(defn checker []
  (reify checker/Checker
    (check [_ _test history _opts]
      (check (remove h/invoke? (h/client-ops history))))))

(defn workload [opts]
  {:client          (client)
   :generator       (generator (:key-count opts))
   :final-generator final-generator
   :checker         (checker)
   :mirror          federation/topic})
