package service

import "time"

// NameServerConfig is the configuration of an embedded name server, the file of `skyserve
// nameserver --config FILE` (JSON or YAML).
type NameServerConfig struct {
	Service string `yaml:"service" json:"service"`
	// Listen is host:port, UDP and TCP.
	Listen string `yaml:"listen" json:"listen"`
	Name   string `yaml:"name" json:"name"`
	Zone   string `yaml:"zone" json:"zone"`
	// Routing is latency or geo.
	Routing string `yaml:"routing" json:"routing"`
	// TTL is how long resolvers may cache a response, in whole seconds.
	TTL time.Duration `yaml:"ttl" json:"ttl"`
	// Records are the balancers, in the order of service.yaml.
	Records []NameRecord `yaml:"records" json:"records"`
	Clients []DNSClient  `yaml:"clients,omitempty" json:"clients,omitempty"`
	// RTT is the round trip between two local regions, with keys such as "us-eu".
	RTT map[string]time.Duration `yaml:"rtt,omitempty" json:"rtt,omitempty"`
}

// NameRecord is the DNS record of a balancer.
type NameRecord struct {
	ID     string `yaml:"id" json:"id"`
	Region Region `yaml:"region" json:"region"`
	// Public is the base URL at which clients reach it; its host is an address.
	Public string `yaml:"public" json:"public"`
	// Check is the URL of the health check, which must return 200 for the record to be served;
	// empty = the record is always served.
	Check string `yaml:"check,omitempty" json:"check,omitempty"`
}
