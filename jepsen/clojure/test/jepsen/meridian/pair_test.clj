(ns jepsen.meridian.pair-test
  "Doctored histories of two clusters: each verdict can turn. Each begins with a
  history that is fine."
  (:require [clojure.test :refer [deftest is testing]]
            [jepsen.meridian [federation :as federation]]
            [jepsen.meridian.workload [failover :as failover]
                                      [mirror :as mirror]]))

(defn- record
  "A record as a consumer sees it, after some headers of its own."
  ([offset n] (record offset n []))
  ([offset n first-headers]
   (let [[k v headers] (federation/content n)]
     [offset 1000 k v (vec (concat first-headers headers))])))

(defn- completed [f type value] {:f f, :type type, :value value})

;; Mirrors

(def committed
  "Three records, and one of a transaction that was aborted between them."
  [(record 0 0) (record 1 1) (record 4 3)])
(def uncommitted
  [(record 0 0) (record 1 1) (record 2 2) (record 4 3)])

(defn- read-all [side isolation records]
  (completed :read-all :ok {:side side, :isolation isolation
                            :log {0 {:from 0, :to 5, :records records}}}))

(defn- look [records & {:keys [side from to] :or {side :east, from 0, to 5}}]
  (completed :read :ok {:side side, :isolation "read_committed", :partition 0
                        :from from, :to to, :records records}))

(def sends
  [(completed :send :ok   [[0 0 0] [0 1 1]])
   (completed :txn  :fail [[0 2 2]])
   (completed :send :info [[0 3 nil]])])

(def end
  [(completed :catch-up :ok {:ends {0 5}, :seconds 1})
   (read-all :west "read_committed" committed)
   (read-all :west "read_uncommitted" uncommitted)
   (read-all :east "read_committed" committed)
   (read-all :east "read_uncommitted" uncommitted)])

(def mirrored
  (concat sends [(look (take 2 committed) :to 3) (look [] :from 2 :to 4)] end))

(deftest mirror-test
  (is (= [true []] ((juxt :valid? :anomaly-types) (mirror/check mirrored))))
  (doseq [[doctored [type history]]
          {"the mirror skips a record"
           [:gap (cons (look [(first committed) (last committed)]) mirrored)]
           "a read of the mirror goes on after what it did not give"
           [:gap (cons (look [] :from 1 :to 2) mirrored)]
           "a record of an aborted transaction is seen"
           [:extra (cons (look uncommitted) mirrored)]
           "a record is seen twice"
           [:not-ascending (cons (look (cons (first committed) committed)) mirrored)]
           "the mirror has what the source has not"
           [:beyond-the-source (cons (look (conj committed (record 5 9)) :to 6) mirrored)]
           "another value"
           [:changed (cons (look (assoc committed 1 (record 1 7))) mirrored)]
           "another timestamp"
           [:changed (cons (look (assoc-in committed [1 1] 999)) mirrored)]
           "another key"
           [:changed (cons (look (assoc-in committed [1 2] "k")) mirrored)]
           "a header is missing"
           [:changed (cons (look (assoc-in committed [1 4] [])) mirrored)]
           "the source itself shows a gap"
           [:gap (cons (look [(first committed)] :side :west) mirrored)]
           "what was acknowledged is nowhere"
           [:lost (cons (completed :send :ok [[0 8 3]]) mirrored)]
           "what was acknowledged is elsewhere"
           [:lost (cons (completed :send :ok [[0 3 3]]) mirrored)]
           "a record is at two offsets, on both sides"
           [:doubled (concat sends (take 1 end)
                             (for [side [:west :east], isolation mirror/isolations]
                               (read-all side isolation
                                         (conj (vec (take 2 committed)) (record 2 1)))))]
           "a transaction that was aborted is there"
           [:aborted-read (cons (completed :txn :fail [[0 3 4]]) mirrored)]
           "the mirror does not catch up"
           [:behind (concat mirrored [(assoc (completed :catch-up :fail nil)
                                             :error {:type :behind})])]
           "the mirror is shorter than it was"
           [:went-back (cons (assoc (completed :read :fail nil)
                                    :error [:OffsetOutOfRangeException "..."])
                             mirrored)]}]
    (testing doctored
      (let [verdict (mirror/check history)]
        (is (false? (:valid? verdict)))
        (is (some #{type} (:anomaly-types verdict)) (pr-str verdict)))))
  (testing "nothing is said of what was not read in the end"
    (is (= :unknown (:valid? (mirror/check (butlast mirrored)))))
    (is (= :unknown (:valid? (mirror/check (concat sends (rest end))))))))

;; Failovers

(defn- number [n] (+ failover/numbers-per-source n))

(defn- of-source [offset n]
  (record offset (number n) [["meridian-producer-id" "source-1"]
                             ["meridian-seqno" (str n)]]))

(defn- kept
  "A record in the topic of what diverged."
  [offset old-offset n]
  (record offset (number n)
          [["meridian-producer-id" "topic/0"] ["meridian-seqno" (str old-offset)]
           ["meridian-diverged-offset" (str old-offset)]
           ["meridian-diverged-leader-epoch" "1"] ["meridian-diverged-producer-id" "7"]
           ["meridian-diverged-producer-epoch" "0"]
           ["meridian-diverged-transactional" "false"]
           ["meridian-diverged-source" "source-1"] ["meridian-diverged-seqno" (str n)]]))

(defn- sent [era side & pairs]
  (completed :send :ok {:era era, :side side
                        :sends (for [[n offset] pairs] [0 (number n) offset])}))

(defn- look-at [whose of records]
  (completed :look :ok {:whose whose, :of of
                        :log {0 {:from 0, :to (inc (reduce max -1 (map first records)))
                                 :records records}}}))

(def old-log "Two records were mirrored; 2 and 3 were not, 3 came after the failover."
  (mapv of-source (range) [0 1 2 3]))
(def new-log "2 was sent again, and 4 is new."
  (mapv of-source (range) [0 1 2 4]))

(def moved
  [(sent 0 :west [0 0] [1 1] [2 2])
   (completed :fail-over :info {:era 1, :from :west, :to :east, :how :cut, :ends {0 2}
                                :forecast {:at 1500, :seen_records 1
                                           :unseen_records_estimate 1}})
   (sent 1 :west [3 3])
   (sent 1 :east [1 :somewhere] [2 2] [4 3])
   (look-at :other federation/topic old-log)
   (look-at :other failover/diverged [(kept 0 2 2) (kept 1 3 3)])
   (look-at :writer federation/topic new-log)
   (look-at :writer federation/topic new-log)
   (look-at :other federation/topic new-log)])

(deftest failover-test
  (is (= [true []] ((juxt :valid? :anomaly-types) (failover/check moved))))
  (doseq [[doctored [type history]]
          {"what was acknowledged by the promoted side is gone"
           [:lost (conj moved (sent 1 :east [5 4]))]
           "what was mirrored before the failover is gone"
           [:lost (assoc moved 0 (sent 0 :west [0 0] [6 1] [2 2]))]
           "a record that was sent again is there twice"
           [:doubled (assoc moved 6 (look-at :writer federation/topic
                                             (conj new-log (of-source 4 2))))]
           "the old side has not what it acknowledged when it counted no more"
           [:lost-at-the-old-side (conj moved (sent 1 :west [7 4]))]
           "what diverged lacks a record"
           [:diverged (assoc moved 5 (look-at :other failover/diverged [(kept 0 2 2)]))]
           "what diverged has one that both sides have"
           [:diverged (assoc moved 5 (look-at :other failover/diverged
                                              [(kept 0 1 1) (kept 1 2 2) (kept 2 3 3)]))]
           "what diverged has a record at another offset"
           [:diverged (assoc moved 5 (look-at :other failover/diverged
                                              [(kept 0 2 2) (kept 1 4 3)]))]
           "what diverged has a record twice"
           [:diverged-count (assoc moved 5 (look-at :other failover/diverged
                                                    [(kept 0 2 2) (kept 1 3 3)
                                                     (kept 2 3 3)]))]
           "the promoted side was no prefix of the old one"
           [:not-a-prefix (assoc moved 4 (look-at :other federation/topic
                                                  (assoc old-log 1 (of-source 1 9))))]
           "the old side follows with other records"
           [:not-a-prefix (assoc moved 8 (look-at :other federation/topic
                                                  (assoc new-log 3 (of-source 3 9))))]
           "the forecast says too much"
           [:forecast (assoc-in moved [1 :value :forecast :seen_records] 100)]
           "the forecast says too little"
           [:forecast (assoc moved 4 (look-at :other federation/topic
                                              (into old-log (map of-source (range 4 12)
                                                                 (range 20 28)))))]
           "there is no forecast"
           [:no-forecast (assoc-in moved [1 :value :forecast] {:at 1500})]
           "a command never comes to an end"
           [:not-done (conj moved {:f :restore, :type :info, :exception {:cause "..."}})]
           "a switchover is rolled back"
           [:not-switched (into [(completed :switch-over :info
                                            {:era 1, :how :switch, :outcome "rolled-back"})
                                 (look-at :writer federation/topic old-log)]
                                moved)]}]
    (testing doctored
      (let [verdict (failover/check history)]
        (is (false? (:valid? verdict)))
        (is (some #{type} (:anomaly-types verdict)) (pr-str verdict)))))
  (testing "nothing is said of a move whose records were not looked at"
    (is (= :unknown (:valid? (failover/check (vec (concat (take 5 moved) (drop 6 moved)))))))))
