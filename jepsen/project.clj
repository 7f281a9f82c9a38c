(defproject meridian-jepsen "0.1.0"
  :description "Jepsen tests for Meridian, a geo-replicated log that speaks the Kafka protocol"
  :license {:name "Apache-2.0"}
  ; The folder is shared with the Rust crate of the same name, whose sources are in src/.
  :source-paths ["clojure/src"]
  :test-paths ["clojure/test"]
  :resource-paths []
  :target-path "target/clojure"
  :dependencies [[org.clojure/clojure "1.12.4"]
                 [jepsen "0.3.11"]
                 [org.clojure/data.json "2.5.1"]
                 [org.apache.kafka/kafka-clients "4.3.1"
                  :exclusions [org.slf4j/slf4j-api]]]
  :main jepsen.meridian.cli
  :jvm-opts ["-Xmx5g"
             "-XX:+UseParallelGC"
             "-Djava.awt.headless=true"
             "-XX:-OmitStackTraceInFastThrow"]
  :repl-options {:init-ns jepsen.meridian.cli})
