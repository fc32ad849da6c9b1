package service

import "time"

// ControllerConfig is everything the controller process needs to know: what
// `skyserve controller --config FILE` reads (JSON or YAML).
type ControllerConfig struct {
	Service string `yaml:"service" json:"service"`
	// Revision is what the configuration calls itself: the controller says it when
	// it has read the file again.
	Revision string `yaml:"revision,omitempty" json:"revision,omitempty"`
	// Listen is host:port of its health and state listener; loopback only.
	Listen string `yaml:"listen" json:"listen"`

	// StoreListen is host:port of the embedded store and StoreDir its data;
	// both empty when StoreURL names a store that runs elsewhere.
	StoreListen string `yaml:"store_listen,omitempty" json:"store_listen,omitempty"`
	StoreDir    string `yaml:"store_dir,omitempty" json:"store_dir,omitempty"`
	StoreURL    string `yaml:"store_url,omitempty" json:"store_url,omitempty"`
	StoreToken  string `yaml:"store_token,omitempty" json:"store_token,omitempty"`

	// AdminToken opens the balancers' admin APIs; empty where they ask for none.
	AdminToken string `yaml:"admin_token,omitempty" json:"admin_token,omitempty"`

	// Identity is the controller's certificate in its service, by which balancers with
	// one know it; nil = it has none.
	Identity *Identity `yaml:"identity,omitempty" json:"identity,omitempty"`

	Balancers []ControlledBalancer `yaml:"balancers,omitempty" json:"balancers"`
	// Replicas are the replicas that the controller assigns.
	Replicas []ControlledReplica `yaml:"replicas,omitempty" json:"replicas"`
	// RTT is the round trip between two places, keyed "us-eu", by which the
	// nearest live balancer is found.
	RTT map[string]time.Duration `yaml:"rtt,omitempty" json:"rtt,omitempty"`
}

// Fixed is what of a configuration holds for the life of a controller: two that
// have it in common differ in replicas only, which are taken up by reading again.
func (c ControllerConfig) Fixed() ControllerConfig {
	c.Revision, c.Replicas = "", nil
	return c
}

// ControlledBalancer is a balancer as the controller addresses it.
type ControlledBalancer struct {
	ID     string `yaml:"id" json:"id"`
	Region Region `yaml:"region" json:"region"`
	// Admin is the base URL of its admin API.
	Admin string `yaml:"admin" json:"admin"`
}

// ControlledReplica is a replica with the balancer that serves it while that
// one lives. Its Region is set; its Epoch is not.
type ControlledReplica struct {
	ReplicaConfig `yaml:",inline"`
	// Home is the id of that balancer.
	Home string `yaml:"home" json:"home"`
	// Away is the URL by which balancers of other regions reach the replica; empty =
	// by URL, as those of its own do.
	Away string `yaml:"away,omitempty" json:"away,omitempty"`
}

// For is the replica as a balancer of a region addresses it.
func (r ControlledReplica) For(balancer Region) ReplicaConfig {
	c := r.ReplicaConfig
	if r.Away != "" && balancer != r.Region {
		c.URL = r.Away
	}
	return c
}

// Donation is for how long a replica is lent to the spot pool.
type Donation struct {
	Since time.Time `json:"since"`
	// Until is when it is removed, unless it was taken back before; zero = never. One
	// whose Until is its Since is not lent: it is removed once it is empty.
	Until time.Time `json:"until,omitzero"`
}

// String says for how long the replica is lent.
func (d Donation) String() string {
	text := "lent since " + d.Since.UTC().Format(time.RFC3339)
	if !d.Until.IsZero() && !d.Leaving() {
		text += ", is removed at " + d.Until.UTC().Format(time.RFC3339) + " unless it is needed before"
	}
	return text
}

// Leaving tells whether the replica is only emptied before it is removed.
func (d Donation) Leaving() bool { return !d.Until.IsZero() && !d.Until.After(d.Since) }

// Over tells whether the replica is to be removed by now.
func (d Donation) Over(now time.Time) bool { return !d.Until.IsZero() && !d.Until.After(now) }
