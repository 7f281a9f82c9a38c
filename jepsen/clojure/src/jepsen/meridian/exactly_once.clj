(ns jepsen.meridian.exactly-once
  "Checkers for what jepsen.tests.kafka leaves unjudged in a history of sends and
  polls:

      double-consumed  no record is consumed by two committed transactions of a
                       group
      lost-tail        a record that was read stays readable, even at the end of
                       its partition, where no later record shows that it is gone
      consumption      the group consumed enough of what was acknowledged for
                       the other verdicts to mean something
      availability     the longest time in which no operation of a kind succeeded

  A key is a partition; a record is named by [key offset]."
  (:require [jepsen [checker :as checker]
                    [history :as h]
                    [util :as util]]))

(def shown-max
  "Records that a verdict shows; it counts all."
  16)

(defn- mops
  "Arguments of the micro-operations of one kind in an operation. The value of an
  :assign or :subscribe has none."
  [kind {:keys [value]}]
  (for [mop value
        :when (and (sequential? mop) (= kind (first mop)))]
    (vec (rest mop))))

(defn- polled
  "[k [offset value]] of all records that an operation polled."
  [op]
  (for [[polls] (mops :poll op), [k pairs] polls, pair pairs]
    [k pair]))

(defn- sent
  "[k value] of all records that an operation sent."
  [op]
  (for [[k v] (mops :send op)]
    [k (if (sequential? v) (second v) v)]))

(defn- client-oks
  "Completed operations of clients that succeeded, in order."
  [history]
  (filter #(and (integer? (:process %)) (= :ok (:type %))) history))

(defn- with-subscribers
  "Pairs of a successful operation and whether its process was subscribed: its
  group chose its partitions."
  [history]
  (->> (client-oks history)
       (reductions (fn [[subscribed _] {:keys [f process] :as op}]
                     (let [subscribed (case f
                                        :subscribe (conj subscribed process)
                                        :assign    (disj subscribed process)
                                        subscribed)]
                       [subscribed [op (contains? subscribed process)]]))
                   [#{} nil])
       (keep second)))

(defn- by-group
  "Successful operations that polled as members of the group."
  [history]
  (for [[op subscribed?] (with-subscribers history)
        :when (and subscribed? (#{:poll :send :txn} (:f op)))]
    op))

(defn- shown
  "A verdict on a map of findings: none is valid."
  [findings]
  {:valid? (empty? findings)
   :count  (count findings)
   :first  (into (sorted-map) (take shown-max (sort-by key findings)))})

;; Two transactions consumed the same input

(defn double-consumed
  "Records that more than one committed transaction consumed: a map of
  [k offset] to the indices of the transactions."
  [history]
  (->> (for [op       (by-group history)
             [k pair] (distinct (polled op))]
         {[k (first pair)] [(:index op)]})
       (apply merge-with into)
       (into {} (filter (comp next val)))))

(defn double-consumed-checker
  "Without transactions a group is at least once: then there is nothing to judge."
  []
  (reify checker/Checker
    (check [_ test history _opts]
      (if (:txn? test)
        (shown (double-consumed history))
        {:valid? true}))))

;; The end of a partition

(def empty-polls-min
  "So many polls in a row that found nothing show that a reader is at the end."
  3)

(defn- whole-reads
  "What processes that began at the beginning found, by process: {:last the
  highest offset by key, :empty polls in a row that found nothing}."
  [history]
  (reduce
    (fn [readers {:keys [f process value] :as op}]
      (case f
        :assign
        (if (:seek-to-beginning? op)
          (assoc readers process {:last (zipmap value (repeat -1)), :empty 0})
          (dissoc readers process))

        (:poll :txn)
        (if-let [reader (get readers process)]
          (let [offsets (for [[k [offset _]] (polled op)] {k offset})]
            (assoc readers process
                   (if (empty? offsets)
                     (update reader :empty inc)
                     {:last (apply merge-with max (:last reader) offsets), :empty 0})))
          readers)

        readers))
    {}
    (client-oks history)))

(defn lost-tail
  "Records that were read, and lie behind all that was found by those who read
  their partition from the beginning to its end when all was over: a map of
  [k offset] to the highest offset found then."
  [history]
  (let [ends (->> (vals (whole-reads history))
                  (filter #(<= empty-polls-min (:empty %)))
                  (map :last)
                  (apply merge-with max))]
    (into {}
          (for [op             (client-oks history)
                [k [offset _]] (polled op)
                :let           [end (get ends k)]
                :when          (and end (< end offset))]
            [[k offset] end]))))

(defn lost-tail-checker []
  (reify checker/Checker
    (check [_ _test history _opts]
      (shown (lost-tail history)))))

;; How much the group consumed

(defn consumption
  "Acknowledged records, how many of them the group consumed, and the share."
  [history]
  (let [acked    (into #{} (mapcat sent) (client-oks history))
        consumed (into #{} (comp (mapcat polled)
                                 (map (fn [[k [_ v]]] [k v]))
                                 (filter acked))
                       (by-group history))]
    {:acked    (count acked)
     :consumed (count consumed)
     :share    (if (empty? acked) 0.0 (double (/ (count consumed) (count acked))))}))

(defn consumption-checker
  "A run whose group consumed less than :consumed-min of what was acknowledged
  was not made: its verdict is unknown. Only runs that subscribe have a group."
  []
  (reify checker/Checker
    (check [_ {:keys [sub-via consumed-min]} history _opts]
      (if (= #{:subscribe} sub-via)
        (let [{:keys [share] :as result} (consumption history)]
          (assoc result :valid? (if (< share (or consumed-min 0)) :unknown true)))
        {:valid? true}))))

;; Availability

(defn availability
  "By kind of operation: how many were tried, the share that succeeded, and the
  longest time without a success between the first and the last of them."
  [history]
  (let [clients (filter #(and (integer? (:process %)) (#{:poll :send :txn} (:f %))) history)]
    (into (sorted-map)
          (for [[f ops] (group-by :f clients)
                :let [oks   (filter (comp #{:ok} :type) ops)
                      tried (count (filter (comp #{:invoke} :type) ops))
                      times (concat [(:time (first ops))] (map :time oks) [(:time (last ops))])]]
            [f {:tried         tried
                :ok-share      (if (zero? tried) 0.0 (double (/ (count oks) tried)))
                :longest-gap-s (util/nanos->secs
                                 (reduce max 0 (map - (rest times) times)))}]))))

(defn availability-checker
  "Fails where no operation of a kind succeeded for longer than :gap-max seconds,
  if the test has such a bound."
  []
  (reify checker/Checker
    (check [_ {:keys [gap-max]} history _opts]
      (let [by-f (availability history)]
        {:valid? (or (nil? gap-max)
                     (every? #(<= (:longest-gap-s %) gap-max) (vals by-f)))
         :by-f   by-f}))))

;; All

(defn checkers
  "All of them, by name."
  []
  {:double-consumed (double-consumed-checker)
   :lost-tail       (lost-tail-checker)
   :consumption     (consumption-checker)
   :availability    (availability-checker)})
