package testcloud

import (
	"cmp"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"skyserve/internal/service"
)

// AWS emulates in memory the parts of Amazon Web Services that skyserve calls: EC2, IAM, STS, Service Quotas
// and the price list, in several regions behind one address. It reads the service, region and caller of a
// request from its signature, which it does not verify; see MachineCredentials. Create it with NewAWS. While
// it is serving, change fields only with Configure.
type AWS struct {
	// DenialCode returns the error code (AuthFailure, UnauthorizedOperation, ExpiredToken) for an action
	// (ec2:RunInstances) in a region; "" = allowed.
	DenialCode func(region, action string) string
	// CapacityErrorCode returns the error code for a launch without capacity, such as
	// InsufficientInstanceCapacity; "" = there is capacity. market is on_demand or spot.
	CapacityErrorCode func(zone, instanceType, market string) string
	// StartFailureCode returns the state reason code of an accepted instance that does not start, such as
	// Server.InsufficientInstanceCapacity; nil or "" = it starts.
	StartFailureCode func(zone, instanceType, market string) string
	// HasInstanceType reports whether an availability zone offers an instance type; nil = every zone offers
	// all types.
	HasInstanceType func(zone, instanceType string) bool
	// LacksImage reports whether a region lacks an image, or the parameter of a published one; nil = none.
	LacksImage func(region, name string) bool
	// SpotPrice returns the spot price of an instance type in an availability zone, such as 0.4012; nil or ""
	// = none is published.
	SpotPrice func(zone, instanceType string) string
	// ListPrice returns the on-demand price of an instance type in a region, such as 0.8048000000; "" = none
	// is published; nil = FakePrice.
	ListPrice func(region, instanceType string) string
	// QuotaLimits are the vCPU limits of every region by quota code. A missing code has no limit, and Service
	// Quotas reports DefaultQuotaLimits for it.
	QuotaLimits        map[string]float64
	DefaultQuotaLimits map[string]float64
	// ShutdownReads is the number of reads that report an instance as shutting down, before it has terminated
	// and has released its security group.
	ShutdownReads int
	// ProfileLagLaunches is the number of launches for which a new instance profile is not propagated, and
	// then the number of launches for which its role is not propagated.
	ProfileLagLaunches int
	// ForeignBuckets are the names of S3 buckets of other AWS accounts.
	ForeignBuckets map[string]bool
	// PageSize is the maximum page size of a list; 0 = as requested.
	PageSize int
	// SpotScore returns the spot placement score of a zone for some instance types, from 1 to 10; nil = 3.
	SpotScore func(zone string, types []string) int
	// MaxScoreRequests is the number of different requests for scores within 24 hours; 0 = unlimited.
	MaxScoreRequests int
	// Now is the clock of the cloud; nil = time.Now.
	Now func() time.Time
	// AssignAddresses returns the addresses of the nth machine; nil = a public address of the 203.0 range and
	// a private address of the default network.
	AssignAddresses func(n int) (public, private string)
	// BootMachine is called for every created machine. The function that it returns is called when the machine
	// ends. nil = machines run no programs. It must neither block nor call the cloud.
	BootMachine func(m BootingMachine) (off func())

	// GoogleTokens verifies an identity token of Google and returns its claims; nil = there are none. Errors include
	// ErrExpiredToken.
	GoogleTokens func(token string) (GoogleClaims, error)

	faults *Faults
	mu     sync.Mutex
	next   int // the number of the last id

	scoreRequests map[string]time.Time // the requests for scores of the last 24 hours

	images   int // the number of RenewImages calls
	regions  map[string]*ec2Region
	roles    map[string]*iamRole
	profiles map[string]*iamProfile
	sessions map[string]roleSession // by the id that callerMachine returns
	buckets  map[string]*s3Bucket   // by name
}

// BootingMachine is a machine that is booting.
type BootingMachine struct {
	ID       string // AWS: i-0...; Google Cloud: the machine's name
	Region   string
	Private  string // its private address
	UserData string
	Tags     map[string]string // Google Cloud: its labels
}

// AWSAccount is the number of the emulated AWS account.
const AWSAccount = "123456789012"

// NewAWS returns an AWS with regions. Each region has the availability zones a, b and c, and a default network.
func NewAWS(faults *Faults, regions ...string) *AWS {
	if faults == nil {
		faults = &Faults{}
	}
	a := &AWS{faults: faults, regions: map[string]*ec2Region{}, roles: map[string]*iamRole{}, profiles: map[string]*iamProfile{}, sessions: map[string]roleSession{}, buckets: map[string]*s3Bucket{}}
	for _, name := range regions {
		a.regions[name] = newEC2Region(a, name)
	}
	return a
}

// nextID returns the next id with a prefix. The caller holds mu.
func (a *AWS) nextID(prefix string) string {
	a.next++
	return fmt.Sprintf("%s-%017x", prefix, a.next)
}

// Configure changes fields while the cloud is serving.
func (a *AWS) Configure(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
}

// now returns the cloud's time. The caller holds mu.
func (a *AWS) now() time.Time {
	if a.Now == nil {
		return time.Now()
	}
	return a.Now()
}

// awsCall is one parsed request.
type awsCall struct {
	key             string // the access key of the signature
	service, region string // from the signature: ec2, us-east-1
	action          string // RunInstances
	form            awsForm
	body            []byte
}

// qualifiedAction returns the action as written in permissions, such as ec2:RunInstances.
func (c awsCall) qualifiedAction() string { return c.service + ":" + c.action }

// reads reports whether the action changes nothing.
func (c awsCall) reads() bool {
	return strings.HasPrefix(c.action, "Describe") || strings.HasPrefix(c.action, "List") || strings.HasPrefix(c.action, "Get")
}

// credentialScope matches the access key, region and service of a signature.
var credentialScope = service.LazyPattern(`Credential=([^/]+)/\d+/([^/]+)/([^/]+)/aws4_request`)

// maxAWSBody limits a request: its largest part is 16 KiB of user data in base64.
const maxAWSBody = 1 << 20

func readAWSCall(r *http.Request) (awsCall, error) {
	var c awsCall
	scope := credentialScope().FindStringSubmatch(cmp.Or(r.Header.Get("Authorization"), presignedScope(r.URL.Query())))
	if scope == nil && r.Method == http.MethodPost && r.URL.Path == "/" {
		return readUnsignedCall(r)
	}
	if scope == nil {
		return c, newAWSError(http.StatusForbidden, "MissingAuthenticationToken", "Request is missing Authentication Token")
	}
	c.key, c.region, c.service = scope[1], scope[2], scope[3]
	var err error
	if c.service == "s3" {
		return c, nil
	}
	if c.body, err = io.ReadAll(io.LimitReader(r.Body, maxAWSBody)); err != nil {
		return c, err
	}
	if target := r.Header.Get("X-Amz-Target"); target != "" {
		_, c.action, _ = strings.Cut(target, ".")
		return c, nil
	}
	if c.form, err = parseAWSForm(string(c.body)); err != nil {
		return c, newAWSError(http.StatusBadRequest, "MalformedQueryString", "%v", err)
	}
	c.action = c.form.get("Action")
	return c, nil
}

// readUnsignedCall reads the only call that requires no credentials of AWS.
func readUnsignedCall(r *http.Request) (awsCall, error) {
	c := awsCall{service: "sts"}
	var err error
	if c.body, err = io.ReadAll(io.LimitReader(r.Body, maxAWSBody)); err != nil {
		return c, err
	}
	if c.form, err = parseAWSForm(string(c.body)); err != nil || c.form.get("Action") != "AssumeRoleWithWebIdentity" {
		return c, newAWSError(http.StatusForbidden, "MissingAuthenticationToken", "Request is missing Authentication Token")
	}
	c.action = c.form.get("Action")
	return c, nil
}

// ServeHTTP serves one call with the outcome that Faults decides.
func (a *AWS) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	w.Header().Set("Date", a.now().UTC().Format(http.TimeFormat))
	a.mu.Unlock()
	c, err := readAWSCall(r)
	if err != nil {
		writeAWSError(w, c, err)
		return
	}
	if c.service == "s3" {
		a.serveS3(w, r, c)
		return
	}
	region := c.region
	if c.service == "iam" {
		region = ""
	}
	outcome, end := a.faults.BeginCall(Call{Cloud: "aws", Region: region, Action: c.qualifiedAction(), ReadOnly: c.reads()})
	defer end()
	switch outcome {
	case RequestLost:
		DropConnection()
	case Throttled:
		writeAWSError(w, c, c.throttled())
		return
	case InternalError:
		writeAWSError(w, c, newAWSError(http.StatusInternalServerError, "InternalError", "An internal error has occurred"))
		return
	}
	a.mu.Lock()
	answer, err := a.execute(c)
	a.mu.Unlock()
	switch {
	case outcome == ResponseLost:
		DropConnection()
	case err != nil:
		writeAWSError(w, c, err)
	default:
		writeAWS(w, c, answer)
	}
}

// usesJSON reports whether the service of a call uses the JSON 1.1 protocol.
func (c awsCall) usesJSON() bool { return c.service == "servicequotas" || c.service == "pricing" }

// throttled returns the error for a call that exceeds the rate limit.
func (c awsCall) throttled() error {
	if c.usesJSON() {
		return badRequest("ThrottlingException", "Rate exceeded")
	}
	return newAWSError(http.StatusServiceUnavailable, "RequestLimitExceeded", "Request limit exceeded.")
}

// execute executes a call. The caller holds mu.
func (a *AWS) execute(c awsCall) (any, error) {
	for _, action := range c.requiredActions() {
		if a.DenialCode == nil {
			break
		}
		if code := a.DenialCode(c.region, action); code != "" {
			return nil, newAWSError(denialStatus(code), code, "%s", denialText(code, action))
		}
	}
	if err := a.authorize(c); err != nil {
		return nil, err
	}
	var answer any
	err := newAWSError(http.StatusBadRequest, "InvalidAction", "The action %s is not valid for this web service.", c.qualifiedAction())
	switch c.service {
	case "ec2":
		answer, err = a.executeEC2(c)
	case "iam":
		if do, known := iamActions[c.action]; known {
			answer, err = do(a, c.form)
		}
	case "sts":
		switch c.action {
		case "GetCallerIdentity":
			answer, err = a.callerIdentity(c), nil
		case "AssumeRoleWithWebIdentity":
			answer, err = a.assumeRoleWithWebIdentity(c.form)
		}
	case "servicequotas":
		answer, err = a.getQuota(c)
	case "pricing":
		answer, err = a.getProducts(c)
	}
	return answer, err
}

// requiredActions returns the actions for which a call requires permission: a launch also passes an IAM role,
// sets tags and reads image parameters.
func (c awsCall) requiredActions() []string {
	required := []string{c.qualifiedAction()}
	if c.action != "RunInstances" && c.action != "PurchaseCapacityBlock" {
		return required
	}
	if c.form.get("IamInstanceProfile.Name") != "" {
		required = append(required, "iam:PassRole")
	}
	if len(c.form.items("TagSpecification")) > 0 {
		required = append(required, "ec2:CreateTags")
	}
	if strings.HasPrefix(c.form.get("ImageId"), "resolve:ssm:") {
		required = append(required, "ssm:GetParameters")
	}
	return required
}

// denialText returns AWS's message for a denied action. EC2 appends a long encoded message, which only
// decode-authorization-message can decode.
func denialText(code, action string) string {
	text := "User: arn:aws:iam::" + AWSAccount + ":user/operator is not authorized to perform: " + action +
		" on resource: * because no identity-based policy allows the " + action + " action"
	switch {
	case code == "UnauthorizedOperation":
		return "You are not authorized to perform this operation. " + text + ". Encoded authorization failure message: " + strings.Repeat("x1-", 300)
	case strings.HasPrefix(code, "AccessDenied"):
		return text
	}
	return "You are not authorized to perform this operation: " + action
}

// denialStatus returns the HTTP status of an authorization error code.
func denialStatus(code string) int {
	if code == "AuthFailure" {
		return http.StatusUnauthorized
	}
	return http.StatusForbidden
}

// ec2Actions are the emulated actions of EC2.
var ec2Actions = map[string]func(*ec2Region, awsForm) (any, error){
	"RunInstances":                   (*ec2Region).runInstances,
	"DescribeInstances":              (*ec2Region).describeInstances,
	"TerminateInstances":             (*ec2Region).terminateInstances,
	"GetConsoleOutput":               (*ec2Region).getConsole,
	"DescribeInstanceTypeOfferings":  (*ec2Region).describeOfferings,
	"DescribeSpotPriceHistory":       (*ec2Region).describeSpotPrices,
	"DescribeAvailabilityZones":      (*ec2Region).describeZones,
	"DescribeCapacityReservations":   (*ec2Region).describeReservations,
	"DescribeCapacityBlockOfferings": (*ec2Region).describeBlockOfferings,
	"PurchaseCapacityBlock":          (*ec2Region).purchaseBlock,
	"GetSpotPlacementScores":         (*ec2Region).getScores,
	"DescribeVpcs":                   (*ec2Region).describeVpcs,
	"DescribeSubnets":                (*ec2Region).describeSubnets,
	"DescribeRouteTables":            (*ec2Region).describeRouteTables,
	"CreateSecurityGroup":            (*ec2Region).createGroup,
	"DescribeSecurityGroups":         (*ec2Region).describeGroups,
	"AuthorizeSecurityGroupIngress":  (*ec2Region).authorizeIngress,
	"RevokeSecurityGroupIngress":     (*ec2Region).revokeIngress,
	"DeleteSecurityGroup":            (*ec2Region).deleteGroup,
	"CreateTags":                     (*ec2Region).createTags,
}

func (a *AWS) executeEC2(c awsCall) (any, error) {
	do, known := ec2Actions[c.action]
	region := a.regions[c.region]
	switch {
	case !known:
		return nil, newAWSError(http.StatusBadRequest, "InvalidAction", "The action %s is not valid for this web service.", c.action)
	case region == nil: // EC2's error for a region that is not enabled for the AWS account
		return nil, newAWSError(http.StatusUnauthorized, "AuthFailure", "AWS was not able to validate the provided access credentials")
	case c.form.get("DryRun") == "true" && c.action == "RunInstances":
		return nil, region.dryRun(c.form)
	case c.form.get("DryRun") == "true":
		return nil, newAWSError(http.StatusPreconditionFailed, "DryRunOperation", "Request would have succeeded, but DryRun flag is set.")
	}
	region.endBlocks()
	return do(region, c.form)
}

// awsError is an error response.
type awsError struct {
	status        int
	code, message string
}

func (e *awsError) Error() string { return e.code + ": " + e.message }

// newAWSError returns an error response.
func newAWSError(status int, code, format string, args ...any) error {
	return &awsError{status, code, fmt.Sprintf(format, args...)}
}

// badRequest returns an error response with status 400.
func badRequest(code, format string, args ...any) error {
	return newAWSError(http.StatusBadRequest, code, format, args...)
}

// writeAWS writes a response in the protocol of the call's service.
func writeAWS(w http.ResponseWriter, c awsCall, answer any) {
	if c.usesJSON() {
		writeJSON11(w, http.StatusOK, answer)
		return
	}
	w.Header().Set("Content-Type", "text/xml;charset=UTF-8")
	root := xml.StartElement{Name: xml.Name{Local: c.action + "Response"}}
	enc := xml.NewEncoder(w)
	if c.service == "ec2" {
		_ = enc.EncodeElement(answer, root) // the caller may have disconnected
		return
	}
	_ = enc.EncodeToken(root)
	_ = enc.EncodeElement(answer, xml.StartElement{Name: xml.Name{Local: c.action + "Result"}})
	_ = enc.EncodeToken(root.End())
	_ = enc.Flush()
}

// writeAWSError writes an error in the protocol of the call's service.
func writeAWSError(w http.ResponseWriter, c awsCall, err error) {
	var e *awsError
	if !errors.As(err, &e) {
		e = &awsError{http.StatusInternalServerError, "InternalError", err.Error()}
	}
	if c.usesJSON() {
		writeJSON11(w, e.status, map[string]string{"__type": e.code, "Message": e.message})
		return
	}
	w.Header().Set("Content-Type", "text/xml;charset=UTF-8")
	w.WriteHeader(e.status)
	type detail struct{ Code, Message string }
	root, document := "ErrorResponse", any(struct{ Error detail }{detail{e.code, e.message}})
	if c.service == "ec2" {
		root, document = "Response", struct {
			Errors []detail `xml:"Errors>Error"`
		}{[]detail{{e.code, e.message}}}
	}
	_ = xml.NewEncoder(w).EncodeElement(document, xml.StartElement{Name: xml.Name{Local: root}})
}

// paginate returns one page of a list and the token of the next page.
func paginate[T any](a *AWS, all []T, token, limit string) (part []T, next string) {
	from, _ := strconv.Atoi(token)
	size, _ := strconv.Atoi(limit)
	if a.PageSize > 0 && (size == 0 || a.PageSize < size) {
		size = a.PageSize
	}
	from = min(from, len(all))
	if size == 0 || from+size >= len(all) {
		return all[from:], ""
	}
	return all[from : from+size], strconv.Itoa(from + size)
}
