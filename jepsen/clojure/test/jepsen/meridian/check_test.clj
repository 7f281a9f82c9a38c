(ns jepsen.meridian.check-test
  "Doctored histories: what a checker has never found it may not be able to
  find. Each begins with a history that is fine."
  (:require [clojure.test :refer [deftest is testing]]
            [jepsen.meridian.check :as check])
  (:import (java.io File)))

(defn- complete
  "An invocation and its completion."
  [process f value type value']
  [{:process process, :f f, :type :invoke, :value value}
   {:process process, :f f, :type type,    :value value'}])

(defn- numbered [ops]
  (vec (map-indexed (fn [i op] (assoc op :index i, :time (* 1000000 i))) ops)))

(defn- send-op
  ([process k offset v] (send-op process k offset v :ok))
  ([process k offset v type]
   (complete process :send [[:send k v]] type [[:send k (if offset [offset v] v)]])))

(defn- poll-op [process polled]
  (complete process :poll [[:poll]] :ok [[:poll polled]]))

(defn- assign-op [process & ks]
  (complete process :assign (vec ks) :ok (vec ks)))

(def queue
  "Three acknowledged sends, one in doubt that took place, one that failed; one
  consumer that reads them all, and one that reads twice."
  (concat (send-op 0 0 0 10)
          (send-op 1 0 1 11)
          (send-op 2 0 nil 12 :info)
          (send-op 3 0 3 13)
          (send-op 4 0 nil 14 :fail)
          (assign-op 5 0)
          (assign-op 6 0)
          (poll-op 5 {0 [[0 10] [1 11] [2 12] [3 13]]})
          (poll-op 6 {0 [[0 10] [1 11]]})
          (poll-op 6 {0 [[2 12] [3 13]]})))

(defn- repolled
  "The history, with other polls for those of process 5."
  [& polls]
  (concat (remove (every-pred (comp #{5} :process) (comp #{:poll} :f)) queue)
          (mapcat (partial poll-op 5) polls)))

(defn- judge
  ([kind ops] (judge kind {} ops))
  ([kind opts ops]
   (let [results (check/check kind opts (numbered ops))]
     (assoc (select-keys results [:valid? :anomaly-types])
            :errors (set (get-in results [:kafka :bad-error-types]))))))

(deftest queue-test
  (is (= {:valid? true, :errors #{}} (judge :queue queue)))
  (doseq [[doctored expected]
          {"a send that was acknowledged is gone, and 13 was read"
           [:lost-write
            (concat (send-op 0 0 0 10) (send-op 1 0 1 11) (send-op 3 0 2 13)
                    (assign-op 5 0)
                    (poll-op 5 {0 [[0 10] [2 13]]}))]
           "the same record at two offsets"
           [:duplicate (repolled {0 [[0 10] [1 11] [2 12] [3 13] [4 11]]})]
           "two records at one offset"
           [:inconsistent-offsets (repolled {0 [[0 10] [1 12] [2 12] [3 13]]})]
           "a send that failed is there"
           [:G1a (repolled {0 [[0 10] [1 11] [2 12] [3 13] [4 14]]})]
           "a consumer jumps"
           [:poll-skip (repolled {0 [[0 10]]} {0 [[2 12] [3 13]]})]
           "a consumer goes back"
           [:nonmonotonic-poll (repolled {0 [[0 10] [1 11]]} {0 [[0 10] [1 11]]})]
           "acknowledged, and nobody saw it"
           [:unseen (concat (send-op 0 0 4 15) queue)]}]
    (testing doctored
      (let [[error ops] [(first expected) (second expected)]
            verdict (judge :queue ops)]
        (is (false? (:valid? verdict)))
        (is (contains? (:errors verdict) error) (pr-str verdict))))))

(deftest subscribe-test
  (testing "a group may go back after a rebalance, but not lose"
    (let [back (repolled {0 [[0 10] [1 11]]} {0 [[0 10] [1 11]]})]
      (is (false? (:valid? (judge :queue back))))
      (is (true? (:valid? (judge :queue {:sub-via #{:subscribe}} back)))))))

(deftest transaction-test
  (let [txns (fn [read]
               (concat (complete 0 :txn [[:send 0 1] [:send 1 2]] :ok
                                 [[:send 0 [0 1]] [:send 1 [0 2]]])
                       (assign-op 1 0 1)
                       (complete 1 :txn [[:poll] [:send 0 3]] :ok
                                 [[:poll read] [:send 0 [2 3]]])
                       (assign-op 2 0 1)
                       (poll-op 2 {0 [[0 1] [2 3]], 1 [[0 2]]})))]
    (is (true? (:valid? (judge :queue {:txn? true} (txns {0 [[0 1]], 1 [[0 2]]})))))
    (testing "a transaction reads what it has not committed yet"
      (is (contains? (:errors (judge :queue {:txn? true} (txns {0 [[0 1] [2 3]]})))
                     :precommitted-read)))))

(deftest list-append-test
  (let [history (fn [read]
                  (concat (complete 0 :txn [[:append 0 1]] :ok [[:append 0 1]])
                          (complete 1 :txn [[:append 0 2]] :ok [[:append 0 2]])
                          (complete 2 :txn [[:r 0 nil]]    :ok [[:r 0 read]])
                          (complete 3 :txn [[:r 0 nil]]    :ok [[:r 0 [1 2]]])))]
    (is (true?  (:valid? (judge :list-append (history [1 2])))))
    (is (false? (:valid? (judge :list-append (history [1])))) "stale")
    (is (false? (:valid? (judge :list-append (history [2 1])))) "another order")
    (is (false? (:valid? (judge :list-append (history [1 2 2])))) "a duplicate")))

(deftest register-test
  (let [history (fn [read]
                  (concat (complete 0 :write ["a" 1] :ok ["a" 1])
                          (complete 1 :write ["b" 7] :ok ["b" 7])
                          (complete 0 :write ["a" 2] :ok ["a" 2])
                          (complete 1 :read ["a" nil] :ok ["a" read])))]
    (is (true?  (:valid? (judge :register (history 2)))))
    (is (false? (:valid? (judge :register (history 1)))) "stale")))

(deftest file-test
  (testing "operations one after another, or in one vector; unknown tags do not matter"
    (let [file (File/createTempFile "history" ".edn")
          ops  (numbered (send-op 0 0 0 10))]
      (spit file (apply str (map prn-str ops)))
      (is (= ops (check/read-ops file)))
      (spit file (str "#some/tag " (pr-str ops)))
      (is (= ops (check/read-ops file)))
      (.delete file))))
