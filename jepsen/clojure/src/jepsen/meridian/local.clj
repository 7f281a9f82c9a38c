(ns jepsen.meridian.local
  "Nodes on this machine, for those who have one laptop and not nine servers.

      netns      each node is a network namespace of its own, with an address on
                 a bridge. Needs root. Jepsen's own iptables partitions work in it.

          JVM 10.77.255.254 ---- bridge ---- 10.77.1.1  A1
                                   |-------- 10.77.1.2  A2 ...

      loopback   each node is an address of the loopback network. Needs
                 nothing, but has no partitions: iptables would be the machine's.

  A node's name is its address, so that all of Jepsen finds it without DNS."
  (:require [clojure.java.shell :refer [sh]]
            [clojure.string :as str]
            [clojure.tools.logging :refer [info]]
            [jepsen [net :as net]
                    [os :as os]]
            [jepsen.control.core :as core]
            [clj-commons.slingshot :refer [throw+]]))

(def modes
  "The ways to have nodes on this machine."
  #{:netns :loopback})

(defn nodes
  "Names of the nodes of a local cluster, whose datacenters come after as many of
  another one."
  [mode dcs-before dcs racks]
  (vec (for [dc (range (inc dcs-before) (+ 1 dcs-before dcs)), rack (range 1 (inc racks))]
         (str (case mode :netns "10.77." :loopback "127.77.") dc "." rack))))

(def bridge "mjbr0")
(def bridge-address "10.77.255.254/16")

(defn- tail
  "10.77.1.2 -> 1.2: names of links have room for 15 letters."
  [node]
  (str/join "." (drop 2 (str/split node #"\."))))

(defn netns
  "Name of a node's network namespace."
  [node]
  (str "meridian-" (tail node)))

(defn- link
  "Name of the bridge's end of a node's link."
  [node]
  (str "mj" (tail node)))

(defn- run
  "Runs a command on this machine; returns its output, throws if it fails."
  [& command]
  (let [{:keys [exit out err]} (apply sh (map str command))]
    (when-not (zero? exit)
      (throw+ {:type ::command-failed, :command command, :exit exit, :err err}
              nil "%s: %s" (str/join " " command) err))
    out))

(defn- run?
  "Whether a command succeeds."
  [& command]
  (zero? (:exit (apply sh (map str command)))))

;; Remote

(def ^:private as-we-are
  "Jepsen wraps what needs root in `sudo -k -S -u root bash -c ...`. Here we are
  root already, or the command needs none."
  "sudo() { while [ \"$1\" != bash ]; do shift; done; \"$@\"; }; ")

(defrecord Remote [mode node]
  core/Remote
  (connect [this conn-spec]
    (assoc this :node (:host conn-spec)))

  (disconnect! [this]
    (dissoc this :node))

  (execute! [_ _ctx {:keys [cmd in] :as action}]
    (let [prefix (case mode
                   ; Not `ip netns exec`: what that mounts nobody else sees.
                   :netns    ["nsenter" (str "--net=/run/netns/" (netns node))]
                   :loopback [])]
      (merge action
             (apply sh (concat prefix
                               ["bash" "-c" (str as-we-are cmd)]
                               (when in [:in in]))))))

  (upload! [_ _ctx local-paths remote-path _opts]
    (doseq [path (flatten [local-paths])]
      (run "cp" "-r" path remote-path)))

  (download! [_ _ctx remote-paths local-path _opts]
    (doseq [path (flatten [remote-paths])]
      (run "cp" "-r" path local-path))))

(defn remote
  "A remote that runs commands on this machine, in the node's namespace."
  [mode]
  (->Remote mode nil))

;; Namespaces

(defn- remove-namespace!
  "Removes a node's namespace and whatever an earlier run left in it."
  [node]
  (let [ns (netns node)]
    (when (run? "ip" "netns" "pids" ns)
      (doseq [pid (remove str/blank? (str/split-lines (run "ip" "netns" "pids" ns)))]
        (run? "kill" "-9" pid))
      (run "ip" "netns" "del" ns))
    ; It goes with its namespace, but not at once.
    (run? "ip" "link" "del" (link node))))

(defn- ensure-bridge! []
  (locking bridge
    (when-not (run? "ip" "link" "show" bridge)
      (run "ip" "link" "add" bridge "type" "bridge")
      (run "ip" "addr" "add" bridge-address "dev" bridge)
      (run "ip" "link" "set" bridge "up"))))

(defn- remove-bridge-if-unused! []
  (locking bridge
    (when (and (run? "ip" "link" "show" bridge)
               (str/blank? (run "ip" "-o" "link" "show" "master" bridge)))
      (run "ip" "link" "del" bridge))))

(defn- add-namespace! [node]
  (let [ns   (netns node)
        link (link node)]
    (run "ip" "netns" "add" ns)
    (run "ip" "link" "add" link "type" "veth" "peer" "name" "eth0" "netns" ns)
    (run "ip" "link" "set" link "master" bridge "up")
    (run "ip" "-n" ns "link" "set" "lo" "up")
    (run "ip" "-n" ns "addr" "add" (str node "/16") "dev" "eth0")
    (run "ip" "-n" ns "link" "set" "eth0" "up")))

(defrecord Namespaces []
  os/OS
  (setup! [_ _test node]
    (info "Making network namespace" (netns node))
    (ensure-bridge!)
    (remove-namespace! node)
    (add-namespace! node))

  (teardown! [_ test node]
    (when-not (:leave-db-running? test)
      (remove-namespace! node)
      (remove-bridge-if-unused!))))

(defn options
  "What of a test differs when its nodes are local ones: :remote, :os, :net."
  [mode]
  {:remote (remote mode)
   :os     (case mode :netns (->Namespaces) :loopback os/noop)
   :net    (case mode :netns net/iptables   :loopback net/noop)})
