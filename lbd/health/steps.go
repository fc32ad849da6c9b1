package health

import "fmt"

// The next steps of alerts. Commands that need a deployed service do not work for a standalone balancer.

// ifDeployed returns the first text for a balancer of a deployed service, the second for a standalone one.
func (o *Observation) ifDeployed(deployed, standalone string) string {
	if o.Standalone {
		return standalone
	}
	return deployed
}

// readLog returns how to read the log of a replica.
func (o *Observation) readLog(id string) string {
	return o.ifDeployed(fmt.Sprintf("read 'skyserve logs %s %s'", o.Service, id), "read the log of its engine")
}

// stopSending returns how to stop sending requests to a replica.
func (o *Observation) stopSending(id string) string {
	return o.ifDeployed(fmt.Sprintf("'skyserve replica drain %s'", id), fmt.Sprintf("POST /workers/%s/drain at the admin address", id)) + " stops sending it requests"
}

// addReplica returns how to add a replica.
func (o *Observation) addReplica() string {
	return o.ifDeployed("add a replica with 'skyserve replica add "+o.Own.Name.ShortName()+"'", "add a replica with --replica, or POST /workers at the admin address")
}
