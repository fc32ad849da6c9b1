package service

import "time"

// ControllerConfig is the configuration of the controller process, the file of `skyserve controller
// --config FILE` (JSON or YAML).
type ControllerConfig struct {
	Service string `yaml:"service" json:"service"`
	// ID is the name of this controller among those of the service: the ID of its machine. Empty = its host
	// and process.
	ID string `yaml:"id,omitempty" json:"id,omitempty"`
	// Controllers are the IDs of all controllers of the service, itself included; empty = it is the only one.
	Controllers []string `yaml:"controllers,omitempty" json:"controllers,omitempty"`
	// Revision is the revision of the configuration, which the controller reports after it has
	// reloaded the file.
	Revision string `yaml:"revision,omitempty" json:"revision,omitempty"`
	// Listen is the address, host:port, of the health and state listener; loopback only.
	Listen string `yaml:"listen" json:"listen"`

	// StoreListen is the address, host:port, of the embedded store and StoreDir its data directory;
	// both are empty when StoreURL refers to an external store.
	StoreListen string `yaml:"store_listen,omitempty" json:"store_listen,omitempty"`
	StoreDir    string `yaml:"store_dir,omitempty" json:"store_dir,omitempty"`
	StoreURL    string `yaml:"store_url,omitempty" json:"store_url,omitempty"`
	StoreToken  string `yaml:"store_token,omitempty" json:"store_token,omitempty"`
	// StoreCluster makes the embedded store a member of a cluster; nil = a single store.
	StoreCluster *StoreCluster `yaml:"store_cluster,omitempty" json:"store_cluster,omitempty"`

	// Backup are the scheduled backups of the store; nil = none. To is an absolute path, or a folder of a bucket.
	Backup *StoreBackup `yaml:"backup,omitempty" json:"backup,omitempty"`

	// AdminToken authenticates to the balancers' admin APIs; empty where they require no token.
	AdminToken string `yaml:"admin_token,omitempty" json:"admin_token,omitempty"`

	// Identity is the controller's certificate in its service, with which it authenticates to
	// balancers; nil = none.
	Identity *Identity `yaml:"identity,omitempty" json:"identity,omitempty"`

	Balancers []ControlledBalancer `yaml:"balancers,omitempty" json:"balancers"`
	// Replicas are the replicas that the controller assigns to balancers.
	Replicas []ControlledReplica `yaml:"replicas,omitempty" json:"replicas"`
	// RTT is the round trip between two regions, with keys such as "us-eu", for finding the nearest
	// live balancer.
	RTT map[string]time.Duration `yaml:"rtt,omitempty" json:"rtt,omitempty"`
}

// Immutable returns the part of a configuration that cannot change while a controller runs. Two
// configurations with equal immutable parts differ only in what a reload applies: replicas, balancers, the
// controllers, the members of the store and its backups.
func (c ControllerConfig) Immutable() ControllerConfig {
	c.Revision, c.Replicas, c.Balancers, c.Controllers, c.Backup = "", nil, nil, nil, nil
	if c.StoreCluster != nil {
		c.StoreCluster = &StoreCluster{Listen: c.StoreCluster.Listen, Advertise: c.StoreCluster.Advertise}
	}
	return c
}

// StoreCluster is the cluster of embedded stores that a controller's store is a member of.
type StoreCluster struct {
	// Listen is the address, host:port, where this member accepts the others, and Advertise the one at which
	// they reach it.
	Listen    string `yaml:"listen" json:"listen"`
	Advertise string `yaml:"advertise" json:"advertise"`
	// Members are all members of the cluster, this one included: the IDs of their controllers.
	Members []string `yaml:"members" json:"members"`
	// Routes are the addresses, host:port, where the known members accept each other.
	Routes []string `yaml:"routes" json:"routes"`
	// Clients are the URLs of the other members for the controller, which uses them when its own member
	// cannot write.
	Clients []string `yaml:"clients" json:"clients"`
}

// ControlledBalancer is a balancer that the controller manages.
type ControlledBalancer struct {
	ID     string `yaml:"id" json:"id"`
	Region Region `yaml:"region" json:"region"`
	// Admin is the base URL of its admin API.
	Admin string `yaml:"admin" json:"admin"`
}

// ControlledReplica is a replica with its primary balancer, which owns it while that balancer is
// alive. Its Region is set; its Epoch is not.
type ControlledReplica struct {
	ReplicaConfig `yaml:",inline"`
	// Primary is the ID of the primary balancer. Its key, and that of RemoteURL, are former names, which controllers
	// of the previous version read.
	Primary string `yaml:"home" json:"home"`
	// RemoteURL is the URL at which balancers in other regions reach the replica; empty = its URL.
	RemoteURL string `yaml:"away,omitempty" json:"away,omitempty"`
}

// ForRegion returns the replica's configuration for a balancer in a region.
func (r ControlledReplica) ForRegion(balancer Region) ReplicaConfig {
	c := r.ReplicaConfig
	if r.RemoteURL != "" && balancer != r.Region {
		c.URL = r.RemoteURL
	}
	return c
}

// Donation is the period in which a replica is donated to other work.
type Donation struct {
	Since time.Time `json:"since"`
	// Until is when the replica is removed, unless it is reclaimed before; zero = never. A replica
	// whose Until equals its Since is not donated: it drains and is then removed.
	Until time.Time `json:"until,omitzero"`
}

// String describes the period of the donation.
func (d Donation) String() string {
	text := "donated since " + d.Since.UTC().Format(time.RFC3339)
	if !d.Until.IsZero() && !d.Draining() {
		text += ", removed at " + d.Until.UTC().Format(time.RFC3339) + " unless reclaimed"
	}
	return text
}

// Draining reports whether the replica is not donated, but drains before it is removed.
func (d Donation) Draining() bool { return !d.Until.IsZero() && !d.Until.After(d.Since) }

// Ended reports whether the donation has ended and the replica is to be removed.
func (d Donation) Ended(now time.Time) bool { return !d.Until.IsZero() && !d.Until.After(now) }
