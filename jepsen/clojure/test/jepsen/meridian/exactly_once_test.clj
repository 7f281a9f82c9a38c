(ns jepsen.meridian.exactly-once-test
  "Doctored histories: each begins with one that is fine."
  (:require [clojure.test :refer [deftest is testing]]
            [jepsen [checker :as checker]
                    [history :as h]]
            [jepsen.meridian.exactly-once :as eo]
            [jepsen.meridian.workload.queue :as queue]))

(defn- op
  ([process f value] (op process f value :ok))
  ([process f value type]
   [{:process process, :f f, :value value, :type :invoke}
    {:process process, :f f, :value value, :type type}]))

(defn- history
  "Operations a second apart."
  [& ops]
  (h/history (map-indexed (fn [i o] (assoc o :index i, :time (* 1000000000 i)))
                          (apply concat ops))))

(defn- consume [process type & records]
  (op process :txn [[:poll {0 (vec records)}] [:send 1 [9 90]]] type))

(defn- whole-read
  "A process reads key 0 from the beginning, and finds nothing more in the end."
  [process & records]
  (-> (op process :assign [0])
      (update 1 assoc :seek-to-beginning? true)
      (into (op process :poll [[:poll {0 (vec records)}]]))
      (into (mapcat (fn [_] (op process :poll [[:poll {}]])))
            (range eo/empty-polls-min))))

(defn- verdict
  ([c h] (verdict c {} h))
  ([c test h] (:valid? (checker/check c test h {}))))

(deftest double-consumed-test
  (let [judge (fn [& ops]
                (verdict (eo/double-consumed-checker) {:txn? true} (apply history ops)))
        subscribed [(op 0 :subscribe [0]) (op 1 :subscribe [0])]
        judged (fn [& ops] (apply judge (concat subscribed ops)))]
    (testing "each transaction consumes its own"
      (is (true? (judged (consume 0 :ok [0 10]) (consume 1 :ok [1 11])))))
    (testing "two committed transactions consume one record"
      (is (false? (judged (consume 0 :ok [0 10]) (consume 1 :ok [0 10])))))
    (testing "the second transaction is by the same process"
      (is (false? (judged (consume 0 :ok [0 10]) (consume 0 :ok [0 10])))))
    (testing "an aborted transaction consumes nothing, one in doubt maybe nothing"
      (is (true? (judged (consume 0 :fail [0 10]) (consume 1 :ok [0 10]))))
      (is (true? (judged (consume 0 :info [0 10]) (consume 1 :ok [0 10])))))
    (testing "a process that chose its partitions is in no group"
      (is (true? (judged (consume 0 :ok [0 10]) (op 1 :assign [0]) (consume 1 :ok [0 10])))))
    (testing "without transactions a group consumes at least once"
      (is (true? (verdict (eo/double-consumed-checker) {}
                          (apply history (concat subscribed [(consume 0 :ok [0 10])
                                                             (consume 1 :ok [0 10])]))))))))

(deftest lost-tail-test
  (let [judge (fn [& ops] (verdict (eo/lost-tail-checker) (apply history ops)))
        read  (op 5 :poll [[:poll {0 [[0 10] [1 11]]}]])]
    (is (true? (judge read (whole-read 7 [0 10] [1 11]))))
    (testing "the last record was read, and is gone"
      (is (false? (judge read (whole-read 7 [0 10])))))
    (testing "all records were read, and are gone"
      (is (false? (judge read (whole-read 7)))))
    (testing "one of the last readers found it"
      (is (true? (judge read (whole-read 7 [0 10]) (whole-read 8 [0 10] [1 11])))))
    (testing "nobody came to the end"
      (is (true? (judge read (-> (op 7 :assign [0])
                                 (update 1 assoc :seek-to-beginning? true)
                                 (into (op 7 :poll [[:poll {0 [[0 10]]}]])))))))))

(deftest consumption-test
  (let [judge (fn [consumed-min & ops]
                (verdict (eo/consumption-checker)
                         {:sub-via #{:subscribe}, :consumed-min consumed-min}
                         (apply history ops)))
        ops   [(op 0 :send [[:send 0 [0 10]]]) (op 1 :send [[:send 0 [1 11]]])
               (op 2 :subscribe [0]) (op 2 :poll [[:poll {0 [[0 10]]}]])]]
    (is (true? (apply judge 0.5 ops)))
    (testing "too little was consumed to say anything"
      (is (= :unknown (apply judge 0.6 ops))))
    (testing "a poll of a process that chose its partitions does not count"
      (is (= :unknown (apply judge 0.5 (assoc ops 2 (op 2 :assign [0]))))))))

(deftest availability-test
  (let [h (history (op 0 :send [[:send 0 [0 10]]])
                   (op 0 :send [[:send 0 11]] :info)
                   (op 1 :send [[:send 0 12]] :info)
                   (op 2 :send [[:send 0 [3 13]]]))]
    (is (= {:tried 4, :ok-share 0.5, :longest-gap-s 6.0} (:send (eo/availability h))))
    (is (true?  (verdict (eo/availability-checker) {} h)))
    (is (true?  (verdict (eo/availability-checker) {:gap-max 6} h)))
    (is (false? (verdict (eo/availability-checker) {:gap-max 5} h)))))

(deftest transactional-ids-test
  (let [taken   (fn [pool zombie] ((juxt :taken identity) (queue/take-id pool zombie)))
        [a pool]  (taken queue/no-ids nil)
        [b pool]  (taken pool nil)]
    (is (distinct? a b))
    (testing "what a client leaves the next one takes"
      (is (= a (first (taken (queue/give-back pool a) nil)))))
    (testing "a zombie's id is that of a living client"
      (is (= #{a b} (set (map #(first (taken pool %)) (range 2))))))
    (testing "an id is given back once"
      (let [pool (-> pool (queue/give-back a) (queue/give-back a))
            [c pool] (taken pool nil)
            [d _]    (taken pool nil)]
        (is (distinct? b c d))))))
