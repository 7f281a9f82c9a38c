(ns jepsen.meridian.cli
  "Command line: `lein run test`, `test-all`, `check FILE.edn`, `analyze`,
  `serve`."
  (:gen-class)
  (:require [clojure.string :as str]
            [jepsen [checker :as checker]
                    [cli :as cli]
                    [generator :as gen]
                    [os :as os]
                    [tests :as tests]]
            [jepsen.os.debian :as debian]
            [jepsen.tests.kafka :as jtk]
            [jepsen.util :as util]
            [jepsen.meridian [check :as check]
                             [db :as db]
                             [local :as local]
                             [nemesis :as nemesis]
                             [series :as series]
                             [topology :as topology]]
            [jepsen.meridian.workload [failover :as failover]
                                      [list-append :as list-append]
                                      [mirror :as mirror]
                                      [queue :as queue]
                                      [register :as register]]))

(def workloads
  "Names of workloads, and what makes them."
  {:queue       queue/workload
   :list-append list-append/workload
   :configs     register/configs
   :offsets     register/offsets
   :mirror      mirror/workload
   :failover    failover/workload})

(def pair-workloads
  "Those that take two clusters."
  #{:mirror :failover})

(defn- keywords
  "\"kill,pause\" -> #{:kill :pause}"
  [s]
  (set (map keyword (str/split s #",\s*"))))

(defn- parse-faults
  "Names of faults and of mixes of them, to a set of faults."
  [s]
  (set (mapcat #(get nemesis/named % [%]) (keywords s))))

(defn- subset-of [allowed]
  [#(every? allowed %)
   (str "Must be some of " (str/join ", " (sort (map name allowed))))])

(def positive [#(and (number? %) (pos? %)) "Must be a number above 0"])

(def common-options
  "Options of test and of test-all."
  [[nil "--binary PATH" "The meridian binary, on this machine"
    :default "../target/release/meridian"]
   [nil "--dcs COUNT" "Datacenters that the nodes are spread over, in their order"
    :default 3, :parse-fn parse-long, :validate positive]
   [nil "--dir PATH" "Folder on the nodes for all that they keep"
    :default "/opt/meridian"]
   [nil "--fault-seconds SECONDS" "How long faults last; as long as rests unless told"
    :parse-fn parse-long, :validate positive]
   [nil "--faketime-lib PATH" "libfaketime, for --nemesis clock"
    :default "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"]
   [nil "--final-time-limit SECONDS" "How long to read everything in the end"
    :default 60, :parse-fn parse-long, :validate positive]
   [nil "--final-readers COUNT" "How many clients read everything in the end"
    :default 9, :parse-fn parse-long, :validate positive]
   [nil "--group-protocol NAME" "classic, or consumer (KIP-848)"
    :default "classic", :validate [#{"classic" "consumer"} "classic or consumer"]]
   [nil "--kafka-port PORT" "Port for clients; +100 is for nodes, +200 for operators"
    :default 9092, :parse-fn parse-long, :validate positive]
   [nil "--local MODE" (str "Run the nodes on this machine: netns (a network"
                            " namespace each; needs root), or loopback (no"
                            " partitions)")
    :parse-fn keyword
    :validate [local/modes "Must be netns or loopback"]]
   [nil "--log-level LEVEL" "MERIDIAN_LOG of the nodes" :default "info"]
   [nil "--log-ops" "Log every operation; the history has them anyway"]
   [nil "--nemesis FAULTS" (str "Comma-separated faults: "
                                (str/join ", " (sort (map name nemesis/faults)))
                                "; or none, standard, nasty")
    :default #{}, :parse-fn parse-faults
    :validate (subset-of nemesis/faults)]
   [nil "--nemesis-interval SECONDS" "How long rests between faults are, on average"
    :default 10, :parse-fn parse-long, :validate positive]
   [nil "--racks COUNT" "Racks in each datacenter, for --local"
    :default 3, :parse-fn parse-long, :validate positive]
   [nil "--rate HZ" "Operations per second; 0 for as many as the clients can do"
    :default 200, :parse-fn parse-double
    :validate [#(and (number? %) (not (neg? %))) "Must be a number, 0 or above"]]
   [nil "--targets SETS" (str "What kills and pauses hit: "
                              (str/join ", " (sort (map name nemesis/node-targets))))
    :default nemesis/node-targets, :parse-fn keywords
    :validate (subset-of (conj nemesis/node-targets :owner))]
   [nil "--worker-threads COUNT" "Threads of a node"
    :default 1, :parse-fn parse-long, :validate positive]])

(def queue-options
  "Options of the queue workload, as jepsen.tests.kafka has them."
  [[nil "--crash-clients" "Crash clients from time to time" :id :crash-clients?]
   [nil "--crash-client-interval SECONDS" "How often"
    :default 30, :parse-fn parse-long, :validate positive]
   [nil "--consumed-min SHARE"
    "With subscribe: below this share of what was acknowledged the run is not made"
    :default 0.1, :parse-fn parse-double
    :validate [#(and (number? %) (<= 0 % 1)) "Must be a number from 0 to 1"]]
   [nil "--gap-max SECONDS" "The longest time without a success of each operation"
    :parse-fn parse-double, :validate positive]
   [nil "--key-count COUNT" "Partitions in use at a time"
    :default 8, :parse-fn parse-long, :validate positive]
   [nil "--key-dist NAME" "uniform, or exponential: a key twice as often as the one before"
    :default :exponential, :parse-fn keyword
    :validate [#{:uniform :exponential} "uniform or exponential"]]
   [nil "--max-writes-per-key COUNT" "Sends to a partition before another is used"
    :default 1024, :parse-fn parse-long, :validate positive]
   [nil "--isolation-level LEVEL" "read_committed or read_uncommitted"
    :default "read_committed"
    :validate [#{"read_committed" "read_uncommitted"}
               "read_committed or read_uncommitted"]]
   [nil "--poll-ms MILLIS" "How long a poll waits when there is nothing to read"
    :default 20, :parse-fn parse-long, :validate positive]
   [nil "--sub-via WAY" "How consumers get their partitions: assign, subscribe"
    :default #{:assign}, :parse-fn keywords
    :validate (subset-of #{:assign :subscribe})]
   [nil "--sub-p PROBABILITY" "How likely an operation changes the partitions"
    :default 1/64, :parse-fn parse-double]
   [nil "--txn" "Use transactions" :id :txn?]
   [nil "--ww-deps" "Infer write-write dependencies from offsets" :id :ww-deps]])

(def workload-option
  ["-w" "--workload NAME" (str "queue, list-append, configs or offsets; with two"
                               " clusters mirror or failover")
   :default :queue, :parse-fn keyword
   :validate [workloads (cli/one-of workloads)]])

(defn- check-options
  "What cannot work is refused before it begins."
  [{:keys [options] :as parsed}]
  (cond-> parsed
    (and (= :loopback (:local options))
         (or (some #{:partition :packet :link} (:nemesis options))
             (= :failover (:workload options))))
    (update :errors conj "--local loopback has no partitions; use --local netns")

    (and (:link (:nemesis options)) (not= :mirror (:workload options)))
    (update :errors conj "--nemesis link is for --workload mirror")

    (and (seq (:nemesis options)) (= :failover (:workload options)))
    (update :errors conj "--workload failover makes its own faults: leave out --nemesis")))

(defn- local-nodes
  "With --local, nodes are not those of --nodes."
  [{:keys [options] :as parsed}]
  (if-let [mode (:local options)]
    (let [{:keys [dcs racks workload]} options]
      (assoc-in parsed [:options :nodes]
                (cond-> (local/nodes mode 0 dcs racks)
                  (pair-workloads workload)
                  (into (local/nodes mode dcs topology/east-nodes 1)))))
    parsed))

(defn- parse
  "Completes what the command line says. Nodes go before concurrency, which may
  count in them."
  [parsed]
  (-> parsed
      cli/rename-ssh-options
      (cli/rename-options {:leave-db-running :leave-db-running?
                           :logging-json     :logging-json?})
      cli/parse-nodes
      local-nodes
      cli/parse-concurrency
      check-options))

(defn test-name
  "What tells a test from others, in its folder's name."
  [{:keys [workload txn? sub-via nemesis group-protocol]}]
  (->> [(name workload)
        (when txn? "txn")
        (when (= :queue workload) (str/join "+" (sort (map name sub-via))))
        (when (= "consumer" group-protocol) "kip-848")
        (when (seq nemesis) (str/join "," (sort (map name nemesis))))]
       (remove nil?)
       (str/join " ")))

(defn- final-reader?
  "Which threads read everything in the end. Not all: each of them adds all
  records to the history."
  [{:keys [final-readers]}]
  (fn [thread] (and (integer? thread) (< thread final-readers))))

;; A pause of less than a millisecond costs the one thread that all operations
;; come from several, on a busy machine: clients would wait for it.
(defn- at-rate
  "Operations as often as --rate says; 0 is without a pause."
  [{:keys [rate]} gen]
  (if (zero? rate) gen (gen/stagger (/ rate) gen)))

(defn- generator
  "Operations and faults for the time limit, then the end of all faults, a rest,
  and a last read of everything."
  [opts workload nemesis]
  (gen/phases
    (->> (:generator workload)
         (at-rate opts)
         (gen/nemesis (gen/phases (gen/sleep 5) (:generator nemesis)))
         (gen/time-limit (:time-limit opts)))
    (gen/log "Ending all faults")
    (gen/nemesis (:final-generator nemesis))
    (when-let [final (:final-generator workload)]
      (gen/phases
        (gen/log "Waiting for recovery")
        (gen/sleep 10)
        (gen/time-limit (:final-time-limit opts)
                        (gen/on-threads (final-reader? opts) final))))))

(defn- timed
  "A checker whose result has the :seconds it took."
  [c]
  (reify checker/Checker
    (check [_ test history opts]
      (let [begun  (System/nanoTime)
            result (checker/check c test history opts)]
        (assoc result :seconds
               (util/nanos->secs (- (System/nanoTime) begun)))))))

(defn meridian-test
  "A test map, of options from the command line."
  [opts]
  (let [opts     (cond-> (assoc opts
                                :fake-clock? (contains? (:nemesis opts) :clock)
                                :disk-image? (contains? (:nemesis opts) :power))
                   (pair-workloads (:workload opts)) topology/pair)
        _        (run! topology/geometry (vals (topology/clusters opts)))
        workload ((workloads (:workload opts)) opts)
        db       (db/db opts)
        nemesis  (nemesis/package {:db       db
                                   :faults   (:nemesis opts)
                                   :targets  (cond-> (:targets opts)
                                               (= :mirror (:workload opts)) (conj :owner))
                                   :lasts    (or (:fault-seconds opts)
                                                 (:nemesis-interval opts))
                                   :interval (:nemesis-interval opts)})]
    (merge tests/noop-test
           {:os debian/os}
           opts
           (select-keys workload [:concurrency :mirror])
           (when-let [mode (:local opts)] (local/options mode))
           {:name      (str "meridian " (test-name opts))
            :db        db
            :client    (:client workload)
            ; A workload may make its own faults, and say what comes when.
            :nemesis   (if-let [mover (:mover workload)] (mover db) (:nemesis nemesis))
            :generator (or (:play workload) (generator opts workload nemesis))
            :checker   (checker/compose
                         (update-vals
                           (merge
                             {:stats      (jtk/stats-checker)
                              :perf       (checker/perf {:nemeses (:perf nemesis)})
                              :exceptions (checker/unhandled-exceptions)
                              :panics     (checker/log-file-pattern
                                            #"panicked at" "meridian.log")
                              ; Nodes that ended though nobody killed them.
                              :ends       (checker/log-file-pattern #"." db/ended-log)
                              :workload   (:checker workload)}
                             (:checkers workload))
                           timed))
            :logging   {:overrides (cond-> {"org.apache.kafka" :off}
                                     (not (:log-ops opts))
                                     (assoc "jepsen.util" :warn))}})))

(def suite
  "What test-all runs, each with the faults of --nemesis."
  [{:workload :queue}
   {:workload :queue, :sub-via #{:subscribe}}
   {:workload :queue, :txn? true}
   {:workload :queue, :txn? true, :sub-via #{:subscribe}, :crash-clients? true}
   {:workload :list-append}
   {:workload :list-append, :txn? true}
   {:workload :configs}
   {:workload :offsets}])

(def series-options
  "Options of series, and its defaults where they differ: transactions with
  subscribe under four faults, on a machine of two cores."
  [[nil "--runs COUNT" "How many runs"
    :default 10, :parse-fn parse-long, :validate positive]
   [nil "--seed NUMBER" "The n-th run's choices begin with this plus n"
    :default 0, :parse-fn parse-long]
   [nil "--series NAME" "Folder of the series in store/series"
    :default "exactly-once"]])

(def series-defaults
  "What series does unless it is told otherwise."
  ["--time-limit" "300" "--txn" "--sub-via" "subscribe"
   "--nemesis" "kill,pause,partition,power"
   "--nemesis-interval" "20" "--fault-seconds" "5"
   "--rate" "0" "--concurrency" "5n"
   "--key-count" "32" "--key-dist" "uniform" "--max-writes-per-key" "2048"
   "--sub-p" "0.0005" "--crash-client-interval" "120" "--final-readers" "3"])

(def series-command
  {"series"
   {:opt-spec (cli/merge-opt-specs
                cli/test-opt-spec
                (concat [workload-option] common-options queue-options
                        series-options))
    :opt-fn   parse
    :usage    (str "Usage: lein run series [OPTIONS]\n\n"
                   "Makes many runs, and a table of them. Begun again with the same"
                   " --series, it goes on where it was left.\n"
                   "Unless told otherwise: " (str/join " " series-defaults) "\n"
                   "Exit code: 0 all valid, 1 not, 2 unknown.\n")
    :run      (fn [{:keys [options]}]
                ; `analyze` knows how to begin again with what `test` was told.
                (System/exit
                  (series/run! meridian-test
                               (update options :argv #(cons "test" (rest %))))))}})

(def check-command
  {"check"
   {:opt-spec [cli/help-opt
               ["-w" "--workload NAME" "queue, list-append or register"
                :default :queue, :parse-fn keyword
                :validate [check/judges (cli/one-of check/judges)]]
               [nil "--sub-via WAY" "assign, subscribe"
                :default #{:assign}, :parse-fn keywords
                :validate (subset-of #{:assign :subscribe})]
               [nil "--txn" "The history has transactions" :id :txn?]
               [nil "--gap-max SECONDS" "The longest time without a success of each operation"
                :parse-fn parse-double, :validate positive]
               [nil "--ww-deps" "Infer write-write dependencies from offsets"
                :id :ww-deps]]
    :usage    (str "Usage: lein run check [OPTIONS] FILE.edn\n\n"
                   "Judges a history, such as the Rust runner writes.\n"
                   "Exit code: 0 valid, 1 not, 2 unknown.\n\n"
                   "Example: lein run check --sub-via subscribe history.edn\n")
    :opt-fn   (fn [{:keys [arguments] :as parsed}]
                (cond-> parsed
                  (not= 1 (count arguments))
                  (update :errors conj "Give one file to judge")))
    :run      (fn [{:keys [options arguments]}]
                (System/exit (check/check-file! (first arguments) options)))}})

(defn -main [& [command & arguments]]
  (cli/run!
    (merge (cli/single-test-cmd
             {:test-fn  meridian-test
              :opt-spec (concat [workload-option] common-options queue-options)
              :opt-fn*  parse})
           (cli/test-all-cmd
             {:tests-fn (fn [opts] (map #(meridian-test (merge opts %)) suite))
              :opt-spec (concat common-options queue-options)
              :opt-fn*  parse})
           series-command
           check-command
           (cli/serve-cmd))
    (cons command
          ; What is said last counts.
          (concat (when (= "series" command) series-defaults) arguments))))
