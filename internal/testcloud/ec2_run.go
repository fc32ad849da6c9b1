package testcloud

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"time"
)

// ec2Token is the instance that a client token created, and the parameters of its request.
type ec2Token struct {
	instance   string
	parameters string
}

// maxUserData is the maximum size of user data, before base64.
const maxUserData = 16 << 10

type runAnswer struct {
	Reservation string           `xml:"reservationId"`
	Instances   []ec2InstanceDoc `xml:"instancesSet>item"`
}

func (r *ec2Region) runInstances(f awsForm) (any, error) {
	if err := f.validateLaunch(); err != nil {
		return nil, err
	}
	token, words := f.get("ClientToken"), f.canonical("Action", "Version")+strconv.Itoa(r.aws.images)
	if before, used := r.tokens[token]; used && token != "" {
		return r.repeatLaunch(before, words)
	}
	i, err := r.readInstance(f)
	if err != nil {
		return nil, err
	}
	if err := r.checkCapacity(i, f); err != nil {
		return nil, err
	}
	i.id, i.launched, i.number, i.state = r.aws.nextID("i"), r.aws.now(), r.aws.next, "pending"
	i.unseen = r.aws.faults.StaleLists
	r.instances[i.id] = i
	if code := r.startFailure(i); code != "" {
		r.terminate(i, code, "the machine could not be started")
	} else {
		r.boot(i)
	}
	if token != "" {
		r.tokens[token] = ec2Token{i.id, words}
	}
	return runAnswer{"r-" + i.id, []ec2InstanceDoc{i.doc("pending")}}, nil
}

// startFailure returns the code with which an accepted instance fails to start; empty if it starts.
func (r *ec2Region) startFailure(i *ec2Instance) string {
	if r.aws.StartFailureCode == nil {
		return ""
	}
	return r.aws.StartFailureCode(i.zone, i.kind, i.market)
}

// boot assigns addresses to a machine and starts its programs.
func (r *ec2Region) boot(i *ec2Instance) {
	i.private = fmt.Sprintf("172.31.%d.%d", i.number>>8, i.number&255)
	i.public = fmt.Sprintf("203.0.%d.%d", i.number>>8, i.number&255)
	if r.aws.AssignAddresses != nil {
		i.public, i.private = r.aws.AssignAddresses(i.number)
	}
	if r.aws.BootMachine != nil {
		i.stop = r.aws.BootMachine(BootingMachine{ID: i.id, Region: r.name, Private: i.private, UserData: i.userData, Tags: maps.Clone(i.tags)})
	}
}

// repeatLaunch responds to a request whose client token was used before.
func (r *ec2Region) repeatLaunch(before ec2Token, words string) (any, error) {
	i := r.instances[before.instance]
	switch {
	case before.parameters != words:
		return nil, badRequest("IdempotentParameterMismatch", "The client token was used with other parameters")
	case i == nil:
		return nil, badRequest("IdempotentInstanceTerminated", "The instance of this client token has been terminated")
	}
	return runAnswer{"r-" + i.id, []ec2InstanceDoc{i.doc(i.state)}}, nil
}

// readInstance returns the instance of a request, and validates its references.
func (r *ec2Region) readInstance(f awsForm) (*ec2Instance, error) {
	nic := f.sub("NetworkInterface.1")
	i := &ec2Instance{
		token: f.get("ClientToken"), image: f.get("ImageId"), kind: f.get("InstanceType"), market: "on_demand",
		subnet: cmp.Or(nic.get("SubnetId"), f.get("SubnetId")), group: nic.get("SecurityGroupId.1"), profile: f.get("IamInstanceProfile.Name"),
		tags: f.tagsFor("instance"), request: f,
	}
	if market := f.get("InstanceMarketOptions.MarketType"); market == "spot" || market == ec2BlockMarket {
		i.market = market
	}
	if err := r.placeInstance(i); err != nil {
		return nil, err
	}
	if err := r.resolveImage(i.image); err != nil {
		return nil, err
	}
	text, err := base64.StdEncoding.DecodeString(f.get("UserData"))
	switch {
	case err != nil:
		return nil, badRequest("InvalidUserData.Malformed", "Invalid BASE64 encoding of user data.")
	case len(text) > maxUserData:
		return nil, badRequest("InvalidParameterValue", "User data is limited to 16384 bytes")
	case ec2Types[i.kind] == 0:
		return nil, badRequest("InvalidParameterValue", "Invalid value '%s' for InstanceType.", i.kind)
	}
	if i.group != "" {
		g, err := r.findVisibleGroup(i.group)
		if err != nil {
			return nil, err
		}
		if g.vpc != r.vpcOf(i.subnet) {
			return nil, badRequest("InvalidParameter", "Security group %s and subnet %s belong to different networks.", i.group, i.subnet)
		}
	}
	if i.group != "" {
		i.groupName = r.groups[i.group].name
	}
	i.userData = string(text)
	return i, r.aws.checkProfile(i.profile)
}

// placeInstance sets the availability zone of an instance: the zone of its subnet, or of the first default
// subnet.
func (r *ec2Region) placeInstance(i *ec2Instance) error {
	for _, s := range r.subnets {
		if i.subnet == s.ID || i.subnet == "" && s.Default {
			i.subnet, i.zone = s.ID, s.Zone
			return nil
		}
	}
	if i.subnet != "" {
		return badRequest("InvalidSubnetID.NotFound", "The subnet ID '%s' does not exist", i.subnet)
	}
	return badRequest("VPCIdNotSpecified", "No default VPC for this user")
}

// vpcOf returns the network of a subnet.
func (r *ec2Region) vpcOf(subnet string) string {
	for _, s := range r.subnets {
		if s.ID == subnet {
			return s.Vpc
		}
	}
	return ""
}

// checkProfile rejects an instance profile that does not exist or is not propagated to EC2.
func (a *AWS) checkProfile(name string) error {
	if name == "" {
		return nil
	}
	p := a.profiles[name]
	if p == nil || p.notFoundLaunches > 0 {
		if p != nil {
			p.notFoundLaunches--
		}
		return badRequest("InvalidParameterValue", "Value (%s) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name", name)
	}
	if p.role == "" || p.noRoleLaunches > 0 {
		p.noRoleLaunches--
		return badRequest("InvalidParameterValue", `IAM Instance Profile "%s" has no associated IAM Roles`, iamARN("instance-profile", p.path, p.name))
	}
	return nil
}

// capacityCodes are the capacity error codes with a server error status.
var capacityCodes = map[string]int{
	"InsufficientInstanceCapacity": http.StatusInternalServerError,
	"InsufficientHostCapacity":     http.StatusInternalServerError,
	"InsufficientCapacity":         http.StatusInternalServerError,
	"InsufficientAddressCapacity":  http.StatusInternalServerError,
	"InsufficientVolumeCapacity":   http.StatusInternalServerError,
}

// checkCapacity rejects an instance for lack of capacity or quota.
func (r *ec2Region) checkCapacity(i *ec2Instance, f awsForm) error {
	if !r.offers(i.zone, i.kind) {
		return badRequest("Unsupported", "Your requested instance type (%s) is not supported in your requested Availability Zone (%s).", i.kind, i.zone)
	}
	if r.aws.CapacityErrorCode != nil {
		if code := r.aws.CapacityErrorCode(i.zone, i.kind, i.market); code != "" {
			status := max(http.StatusBadRequest, capacityCodes[code])
			return newAWSError(status, code, "We currently do not have sufficient %s capacity in the Availability Zone you requested (%s).", i.kind, i.zone)
		}
	}
	if err := r.assignReservation(i, f.sub("CapacityReservationSpecification")); err != nil {
		return err
	}
	return r.admitQuota(i)
}

// ec2Reservation is a capacity reservation.
type ec2Reservation struct {
	id, zone, kind string
	count          int
	open           bool // any matching instance uses it; false = only instances that request it by id

	state, owner string // empty = active, and of AWSAccount
	starts, ends time.Time
	tags         awsTags

	block       bool   // a Capacity Block
	paying      bool   // its payment has not completed
	failedState string // its state in place of the one that follows from the clock
}

// AddReservation adds a capacity reservation in an availability zone of a region.
func (a *AWS) AddReservation(region, id, zone, instanceType string, count int, open bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.regions[region].reserved = append(a.regions[region].reserved, &ec2Reservation{id: id, zone: zone, kind: instanceType, count: count, open: open})
}

// assignReservation assigns an instance to the reservation that it requests, or to an open one.
func (r *ec2Region) assignReservation(i *ec2Instance, requested awsForm) error {
	target, preference := requested.get("CapacityReservationTarget.CapacityReservationId"), requested.get("CapacityReservationPreference")
	if err := r.checkBlockLaunch(i, target); err != nil {
		return err
	}
	if preference == "none" || i.market == "spot" && target == "" {
		return nil
	}
	for _, c := range r.reserved {
		named := target == c.id || target == "" && c.open
		if named && c.stateAt(r.aws.now()) == ec2ReservationActive && c.zone == i.zone && c.kind == i.kind && r.reservedCount(c.id) < c.count {
			i.reservation = c.id
			return nil
		}
	}
	if target != "" || preference == "capacity-reservations-only" {
		return badRequest("ReservationCapacityExceeded", "The requested capacity reservation does not have sufficient compatible and available capacity")
	}
	return nil
}

// reservedCount returns the number of instances in a reservation.
func (r *ec2Region) reservedCount(id string) int {
	n := 0
	for _, i := range r.instances {
		if i.reservation == id && i.usesCapacity() {
			n++
		}
	}
	return n
}
