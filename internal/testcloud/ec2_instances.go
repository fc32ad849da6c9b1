package testcloud

import (
	"cmp"
	"encoding/base64"
	"slices"
	"strings"
	"time"
)

// The states of an instance, as EC2 numbers them.
var ec2States = map[string]int{"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopped": 80}

// ec2State is a state on the wire.
type ec2State struct {
	Code int    `xml:"code"`
	Name string `xml:"name"`
}

func stateOf(name string) ec2State { return ec2State{ec2States[name], name} }

// ec2Instance is one VM.
type ec2Instance struct {
	id, token, image, kind, zone, subnet, group, groupName, profile string
	market                                                          string // on_demand or spot
	reservation                                                     string // the capacity reservation that it fills
	state, why                                                      string
	whyCode                                                         string
	launched                                                        time.Time
	number                                                          int // of which its addresses are made
	tags                                                            awsTags
	closing                                                         int // looks until it has terminated
	request                                                         awsForm
	console                                                         string
	userData                                                        string
	public, private                                                 string
	stop                                                            func() // ends what Boot began
	// For so many lists the instance is still shown as it was: with oldState, or not at
	// all where that is empty.
	unseen   int
	oldState string
}

// ec2InstanceDoc is an instance on the wire.
type ec2InstanceDoc struct {
	ID          string   `xml:"instanceId"`
	Image       string   `xml:"imageId"`
	State       ec2State `xml:"instanceState"`
	Reason      string   `xml:"reason"`
	StateReason *struct {
		Code    string `xml:"code"`
		Message string `xml:"message"`
	} `xml:"stateReason"`
	Type      string `xml:"instanceType"`
	Launched  string `xml:"launchTime"`
	Placement struct {
		Zone string `xml:"availabilityZone"`
	} `xml:"placement"`
	PrivateIP string `xml:"privateIpAddress,omitempty"`
	PublicIP  string `xml:"ipAddress,omitempty"`
	Token     string `xml:"clientToken"`
	Lifecycle string `xml:"instanceLifecycle,omitempty"`
	Subnet    string `xml:"subnetId"`
	CPU       struct {
		Cores   int `xml:"coreCount"`
		Threads int `xml:"threadsPerCore"`
	} `xml:"cpuOptions"`
	Reservation string        `xml:"capacityReservationId,omitempty"`
	Tags        []awsTag      `xml:"tagSet>item"`
	Groups      []ec2GroupRef `xml:"groupSet>item"`
}

// ec2GroupRef is a security group that an instance is in.
type ec2GroupRef struct {
	ID   string `xml:"groupId"`
	Name string `xml:"groupName"`
}

// doc is the instance in a state.
func (i *ec2Instance) doc(state string) ec2InstanceDoc {
	d := ec2InstanceDoc{
		ID: i.id, Image: i.image, State: stateOf(state), Type: i.kind, Token: i.token, Subnet: i.subnet, Reservation: i.reservation,
		Launched: i.launched.UTC().Format("2006-01-02T15:04:05.000Z"), Tags: i.tags.wire(),
	}
	if i.group != "" {
		d.Groups = []ec2GroupRef{{i.group, i.groupName}}
	}
	d.Placement.Zone = i.zone
	d.CPU.Cores, d.CPU.Threads = ec2Types[i.kind]/2, 2
	if i.market == "spot" {
		d.Lifecycle = "spot"
	}
	if state == "running" {
		d.PrivateIP, d.PublicIP = i.private, i.public
	}
	if i.whyCode != "" && state == i.state {
		d.Reason = i.why
		d.StateReason = &struct {
			Code    string `xml:"code"`
			Message string `xml:"message"`
		}{i.whyCode, i.whyCode + ": " + i.why}
	}
	return d
}

// shown is the state in which a list shows the instance, empty where it does not yet.
func (i *ec2Instance) shown() string {
	if i.unseen > 0 {
		return i.oldState
	}
	return i.state
}

// look lets time pass for an instance that a list was asked for.
func (i *ec2Instance) look() {
	if i.unseen > 0 {
		i.unseen--
		return
	}
	i.age()
}

// age takes an instance one look nearer to the state that it is on the way to.
func (i *ec2Instance) age() {
	switch {
	case i.state == "pending":
		i.state = "running"
	case i.state == "shutting-down" && i.closing == 0:
		i.state = "terminated"
	case i.state == "shutting-down":
		i.closing--
	}
}

// holds reports whether the instance still has its network interface.
func (i *ec2Instance) holds() bool { return i.state != "terminated" }

// counts reports whether the instance counts against quotas and reservations.
func (i *ec2Instance) counts() bool { return i.state == "pending" || i.state == "running" }

// end is the prefix of the end of an instance.
func (r *ec2Region) end(i *ec2Instance, code, why string) {
	if !i.counts() && i.state != "stopped" {
		return
	}
	if i.stop != nil {
		i.stop()
		i.stop = nil
	}
	i.oldState, i.unseen = i.state, r.aws.faults.Unseen
	i.state, i.whyCode, i.why, i.closing = "shutting-down", code, why, r.aws.Closing
}

type instanceSet struct {
	Instances []ec2InstanceDoc `xml:"instancesSet>item"`
}

type instancesAnswer struct {
	Reservations []instanceSet `xml:"reservationSet>item"`
	Next         string        `xml:"nextToken,omitempty"`
}

func (r *ec2Region) describeInstances(f awsForm) (any, error) {
	all, err := chosen(f, r.instances, func(i *ec2Instance) facts {
		return i.tags.facts(facts{
			"client-token": i.token, "instance-type": i.kind, "instance-state-name": cmp.Or(i.shown(), i.state), "availability-zone": i.zone,
		})
	})
	if err != nil {
		return nil, err
	}
	asked := f.list("InstanceId")
	var docs []ec2InstanceDoc
	for _, i := range all {
		if len(asked) > 0 && !slices.Contains(asked, i.id) {
			continue
		}
		if state := i.shown(); state != "" {
			docs = append(docs, i.doc(state))
		}
		i.look()
	}
	if len(docs) < len(asked) {
		return nil, badRequest("InvalidInstanceID.NotFound", "The instance IDs '%s' do not exist", strings.Join(asked, ", "))
	}
	part, next := cutPage(r.aws, docs, f.get("NextToken"), f.get("MaxResults"))
	answer := instancesAnswer{Next: next}
	for _, d := range part {
		answer.Reservations = append(answer.Reservations, instanceSet{[]ec2InstanceDoc{d}})
	}
	return answer, nil
}

type ec2StateChange struct {
	ID   string   `xml:"instanceId"`
	Now  ec2State `xml:"currentState"`
	Then ec2State `xml:"previousState"`
}

type stateChangesAnswer struct {
	Changes []ec2StateChange `xml:"instancesSet>item"`
}

func (r *ec2Region) terminateInstances(f awsForm) (any, error) {
	var answer stateChangesAnswer
	for _, id := range f.list("InstanceId") {
		i := r.instances[id]
		if i == nil {
			return nil, badRequest("InvalidInstanceID.NotFound", "The instance ID '%s' does not exist", id)
		}
		then := i.state
		r.end(i, "Client.UserInitiatedShutdown", "User initiated shutdown")
		answer.Changes = append(answer.Changes, ec2StateChange{id, stateOf(i.state), stateOf(then)})
	}
	return answer, nil
}

type consoleAnswer struct {
	ID   string `xml:"instanceId"`
	Text string `xml:"output"` // in base64
}

func (r *ec2Region) getConsole(f awsForm) (any, error) {
	i := r.instances[f.get("InstanceId")]
	if i == nil {
		return nil, badRequest("InvalidInstanceID.NotFound", "The instance ID '%s' does not exist", f.get("InstanceId"))
	}
	return consoleAnswer{i.id, base64.StdEncoding.EncodeToString([]byte(i.console))}, nil
}

// Print writes to the console of an instance, by its id.
func (a *AWS) Print(id, text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.regions {
		if i := r.instances[id]; i != nil {
			i.console += text
		}
	}
}

func (r *ec2Region) createTags(f awsForm) (any, error) {
	for _, id := range f.list("ResourceId") {
		var tags awsTags
		switch i, g := r.instances[id], r.groups[id]; {
		case i != nil:
			tags = i.tags
		case g != nil:
			if _, err := r.fresh(id); err != nil {
				return nil, err
			}
			tags = g.tags
		default:
			return nil, badRequest("InvalidID", "The ID '%s' is not valid", id)
		}
		for key, value := range f.readTags("Tag") {
			tags[key] = value
		}
	}
	return done(), nil
}

// doneAnswer is the answer of an action that only says that it is done.
type doneAnswer struct {
	Return bool `xml:"return"`
}

func done() doneAnswer { return doneAnswer{true} }

// Interrupt makes the cloud take a spot instance, by its id.
func (a *AWS) Interrupt(id string) {
	a.endOf(id, "Server.SpotInstanceTermination", "Spot interruption")
}

// Vanish makes an instance end as if somebody had terminated it by hand.
func (a *AWS) Vanish(id string) {
	a.endOf(id, "Client.UserInitiatedShutdown", "User initiated shutdown")
}

func (a *AWS) endOf(id, code, why string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.regions {
		if i := r.instances[id]; i != nil {
			r.end(i, code, why)
		}
	}
}

// Stop makes an instance stop as a person would by hand.
func (a *AWS) Stop(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.regions {
		if i := r.instances[id]; i != nil {
			i.state, i.whyCode, i.why = "stopped", "Client.UserInitiatedShutdown", "User initiated shutdown"
		}
	}
}

// Forget lets every instance that has ended be gone from lists, as EC2 does within
// an hour; the tokens that made them stay known.
func (a *AWS) Forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.regions {
		for id, i := range r.instances {
			if i.state == "terminated" || i.state == "shutting-down" {
				delete(r.instances, id)
			}
		}
	}
}
