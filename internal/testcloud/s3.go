package testcloud

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"skyserve/internal/service"
)

// This file emulates the part of S3 that skyserve calls, by the Amazon S3 API Reference (November 2026):
// names of buckets are shared by all AWS accounts, lists of buckets are eventually consistent, and every other
// read is strongly consistent. A call must be signed for the region of its bucket.

// s3Bucket is a bucket.
type s3Bucket struct {
	name, region  string
	tags          awsTags
	publicBlocked bool
	objects       map[string][]byte
	unseen        int  // remaining lists that omit it
	deleted       bool // remaining lists that contain it: unseen
}

// s3Call is one request to S3.
type s3Call struct {
	awsCall
	bucket, key string
	query       url.Values
	header      http.Header
	request     *http.Request
}

var s3Host = service.LazyPattern(`^([a-z0-9.-]+)\.s3[.-][a-z0-9.-]*amazonaws\.com(\.cn)?$`)

// s3Actions are the emulated actions, by method, number of path elements and subresource.
var s3Actions = map[string]string{
	"GET 0 ": "ListAllMyBuckets", "PUT 1 ": "CreateBucket", "DELETE 1 ": "DeleteBucket", "HEAD 1 ": "HeadBucket", "GET 1 list-type": "ListBucket",
	"GET 1 tagging": "GetBucketTagging", "PUT 1 tagging": "PutBucketTagging",
	"GET 1 publicAccessBlock": "GetBucketPublicAccessBlock", "PUT 1 publicAccessBlock": "PutBucketPublicAccessBlock",
	"GET 2 ": "GetObject", "HEAD 2 ": "HeadObject", "PUT 2 ": "PutObject", "DELETE 2 ": "DeleteObject",
}

func readS3Call(r *http.Request, c awsCall) s3Call {
	call := s3Call{awsCall: c, query: r.URL.Query(), header: r.Header, request: r}
	path := strings.TrimPrefix(r.URL.Path, "/")
	if host := s3Host().FindStringSubmatch(cmp.Or(r.Host, r.URL.Host)); host != nil {
		path = strings.TrimSuffix(host[1]+"/"+path, "/")
	}
	call.bucket, call.key, _ = strings.Cut(path, "/")
	elements, sub := 0, ""
	switch {
	case call.key != "":
		elements = 2
	case call.bucket != "":
		elements = 1
	}
	for _, name := range []string{"list-type", "tagging", "publicAccessBlock"} {
		if call.query.Has(name) {
			sub = name
		}
	}
	call.action = s3Actions[fmt.Sprintf("%s %d %s", r.Method, elements, sub)]
	return call
}

// serveS3 serves one call with the outcome that Faults decides.
func (a *AWS) serveS3(w http.ResponseWriter, r *http.Request, c awsCall) {
	body, err := io.ReadAll(r.Body)
	call := readS3Call(r, c)
	call.body = body
	outcome, end := a.faults.BeginCall(Call{Cloud: "aws", Region: c.region, Action: call.qualifiedAction(), ReadOnly: r.Method == http.MethodGet || r.Method == http.MethodHead})
	defer end()
	var answer any
	switch {
	case err != nil, outcome == RequestLost:
		DropConnection()
	case outcome == Throttled:
		err = newAWSError(http.StatusServiceUnavailable, "SlowDown", "Please reduce your request rate.")
	case outcome == InternalError:
		err = newAWSError(http.StatusInternalServerError, "InternalError", "We encountered an internal error. Please try again.")
	default:
		a.mu.Lock()
		answer, err = a.executeS3(call)
		a.mu.Unlock()
	}
	if outcome == ResponseLost {
		DropConnection()
	}
	if call.action == "HeadBucket" {
		a.mu.Lock()
		if b := a.buckets[call.bucket]; b != nil && !b.deleted { // whether the caller may use the bucket or not
			w.Header().Set("X-Amz-Bucket-Region", b.region)
		}
		a.mu.Unlock()
	}
	writeS3(w, r.Method != http.MethodHead, answer, err)
}

// AddBucket adds an empty bucket of the operator.
func (a *AWS) AddBucket(name, region string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.buckets[name] = &s3Bucket{name: name, region: region, objects: map[string][]byte{}}
}

// writeS3 writes a response; one to HEAD has no body.
func writeS3(w http.ResponseWriter, hasBody bool, answer any, err error) {
	w.Header().Set("Content-Type", "application/xml")
	var e *awsError
	status, isStatus := answer.(s3Status)
	switch object, isObject := answer.([]byte); {
	case errors.As(err, &e):
		w.WriteHeader(e.status)
		if !hasBody {
			return
		}
		type body struct{ Code, Message string }
		_ = xml.NewEncoder(w).EncodeElement(body{e.code, e.message}, xml.StartElement{Name: xml.Name{Local: "Error"}})
	case err != nil:
		w.WriteHeader(http.StatusInternalServerError)
	case isObject:
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Content-Length", strconv.Itoa(len(object)))
		if !hasBody {
			return
		}
		w.Write(object) //nolint:errcheck // the caller may have disconnected
	case answer == nil:
		w.WriteHeader(http.StatusNoContent)
	case isStatus:
		w.WriteHeader(int(status))
	default:
		_ = xml.NewEncoder(w).Encode(answer)
	}
}

// s3Status is the response of HeadBucket: 200, or 301 if the call was to another region.
type s3Status int

// executeS3 executes a call. The caller holds mu.
func (a *AWS) executeS3(c s3Call) (any, error) {
	if c.action == "" {
		return nil, newAWSError(http.StatusNotImplemented, "NotImplemented", "A header you provided implies functionality that is not implemented.")
	}
	if a.DenialCode != nil {
		if code := a.DenialCode(c.region, c.qualifiedAction()); code != "" {
			return nil, newAWSError(denialStatus(code), code, "%s", denialText(code, c.qualifiedAction()))
		}
	}
	if err := a.verifyS3(c); err != nil {
		return nil, err
	}
	if err := a.authorizeS3(c); err != nil {
		return nil, err
	}
	switch c.action {
	case "ListAllMyBuckets":
		return a.listBuckets(c), nil
	case "CreateBucket":
		return a.createBucket(c)
	}
	b := a.buckets[c.bucket]
	owner := c.header.Get("X-Amz-Expected-Bucket-Owner")
	switch {
	case a.ForeignBuckets[c.bucket] || owner != "" && owner != AWSAccount:
		return nil, newAWSError(http.StatusForbidden, "AccessDenied", "Access Denied")
	case b == nil || b.deleted:
		return nil, newAWSError(http.StatusNotFound, "NoSuchBucket", "The specified bucket does not exist")
	case b.region != c.region && c.action == "HeadBucket":
		return s3Status(http.StatusMovedPermanently), nil
	case b.region != c.region:
		return nil, newAWSError(http.StatusBadRequest, "AuthorizationHeaderMalformed", "The authorization header is malformed; the region '%s' is wrong; expecting '%s'", c.region, b.region)
	}
	return a.executeBucket(b, c)
}

// authorizeS3 rejects a machine's call that the policies of its role do not allow.
func (a *AWS) authorizeS3(c s3Call) error {
	id := c.callerMachine()
	if id == "" {
		return nil
	}
	role := a.roleOfMachine(id)
	if role == nil {
		return newAWSError(http.StatusForbidden, "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records.")
	}
	policies, err := role.parsedPolicies()
	if err != nil {
		return err
	}
	action := map[string]string{"HeadObject": "GetObject", "HeadBucket": "ListBucket"}[c.action]
	if action == "" {
		action = c.action
	}
	q := iamRequest{"s3:" + action, "arn:aws:s3:::" + strings.TrimSuffix(c.bucket+"/"+c.key, "/"), iamContext{}}
	q.context.addValue("aws:PrincipalAccount", AWSAccount)
	q.context.addValue("aws:ResourceAccount", map[bool]string{false: AWSAccount, true: "another account"}[a.ForeignBuckets[c.bucket]])
	if c.query.Has("prefix") {
		q.context.addValue("s3:prefix", c.query.Get("prefix"))
	}
	if !allowed(policies, q) {
		return c.denial("arn:aws:sts::"+AWSAccount+":assumed-role/"+role.name+"/"+id, q)
	}
	return nil
}

type s3BucketDoc struct{ Name, BucketRegion, CreationDate string }

type s3BucketList struct {
	XMLName xml.Name      `xml:"ListAllMyBucketsResult"`
	Buckets []s3BucketDoc `xml:"Buckets>Bucket"`
}

func (a *AWS) listBuckets(c s3Call) any {
	var list s3BucketList
	for _, name := range slices.Sorted(maps.Keys(a.buckets)) {
		b := a.buckets[name]
		listed := !b.deleted
		if b.unseen > 0 {
			b.unseen--
			listed = b.deleted
		}
		if listed && strings.HasPrefix(name, c.query.Get("prefix")) {
			list.Buckets = append(list.Buckets, s3BucketDoc{name, b.region, "2026-11-24T00:00:00.000Z"})
		}
	}
	return list
}

type s3TagList struct {
	XMLName xml.Name `xml:"Tagging"`
	Tags    []s3Tag  `xml:"TagSet>Tag"`
}

type s3Tag struct{ Key, Value string }

func tagsOfS3(list []s3Tag) awsTags {
	tags := awsTags{}
	for _, t := range list {
		tags[t.Key] = t.Value
	}
	return tags
}

// createBucket creates a bucket in the region of the call. In us-east-1 an existing bucket of the account is
// not an error.
func (a *AWS) createBucket(c s3Call) (any, error) {
	var requested struct {
		LocationConstraint string
		Tags               []s3Tag `xml:"Tags>Tag"`
	}
	if len(c.body) > 0 {
		if err := xml.Unmarshal(c.body, &requested); err != nil {
			return nil, badRequest("MalformedXML", "%v", err)
		}
	}
	region := requested.LocationConstraint
	switch region {
	case "us-east-1":
		return nil, badRequest("InvalidLocationConstraint", "The specified location-constraint is not valid")
	case "":
		region = "us-east-1"
	}
	if region != c.region {
		return nil, badRequest("IllegalLocationConstraintException", "The %s location constraint is incompatible for the region specific endpoint this request was sent to.", region)
	}
	b := a.buckets[c.bucket]
	switch {
	case a.ForeignBuckets[c.bucket]:
		return nil, newAWSError(http.StatusConflict, "BucketAlreadyExists", "The requested bucket name is not available.")
	case b != nil && !b.deleted && b.region == "us-east-1" && region == b.region:
		return []byte{}, nil
	case b != nil && !b.deleted:
		return nil, newAWSError(http.StatusConflict, "BucketAlreadyOwnedByYou", "Your previous request to create the named bucket succeeded and you already own it.")
	}
	a.buckets[c.bucket] = &s3Bucket{name: c.bucket, region: region, tags: tagsOfS3(requested.Tags), objects: map[string][]byte{}, unseen: a.faults.StaleLists}
	return []byte{}, nil
}

type s3PublicBlock struct {
	XMLName                                                                     xml.Name `xml:"PublicAccessBlockConfiguration"`
	BlockPublicAcls, IgnorePublicAcls, BlockPublicPolicy, RestrictPublicBuckets bool
}

// executeBucket executes a call on an existing bucket.
func (a *AWS) executeBucket(b *s3Bucket, c s3Call) (any, error) {
	switch c.action {
	case "HeadBucket":
		return s3Status(http.StatusOK), nil
	case "DeleteBucket":
		if len(b.objects) > 0 {
			return nil, newAWSError(http.StatusConflict, "BucketNotEmpty", "The bucket you tried to delete is not empty")
		}
		b.deleted, b.unseen = true, a.faults.StaleLists
		return nil, nil
	case "GetBucketTagging":
		if len(b.tags) == 0 {
			return nil, newAWSError(http.StatusNotFound, "NoSuchTagSet", "The TagSet does not exist")
		}
		var list s3TagList
		for _, key := range slices.Sorted(maps.Keys(b.tags)) {
			list.Tags = append(list.Tags, s3Tag{key, b.tags[key]})
		}
		return list, nil
	case "PutBucketTagging":
		var list s3TagList
		if err := xml.Unmarshal(c.body, &list); err != nil {
			return nil, badRequest("MalformedXML", "%v", err)
		}
		b.tags = tagsOfS3(list.Tags)
		return nil, nil
	case "GetBucketPublicAccessBlock":
		if !b.publicBlocked {
			return nil, newAWSError(http.StatusNotFound, "NoSuchPublicAccessBlockConfiguration", "The public access block configuration was not found")
		}
		return s3PublicBlock{BlockPublicAcls: true, IgnorePublicAcls: true, BlockPublicPolicy: true, RestrictPublicBuckets: true}, nil
	case "PutBucketPublicAccessBlock":
		var block s3PublicBlock
		if err := xml.Unmarshal(c.body, &block); err != nil {
			return nil, badRequest("MalformedXML", "%v", err)
		}
		b.publicBlocked = block.BlockPublicAcls && block.IgnorePublicAcls && block.BlockPublicPolicy && block.RestrictPublicBuckets
		return []byte{}, nil
	}
	return executeObject(b, c)
}

type s3ObjectList struct {
	XMLName  xml.Name `xml:"ListBucketResult"`
	Contents []struct{ Key string }
}

// executeObject executes a call on the objects of a bucket.
func executeObject(b *s3Bucket, c s3Call) (any, error) {
	object, exists := b.objects[c.key]
	switch c.action {
	case "ListBucket":
		var list s3ObjectList
		for _, key := range slices.Sorted(maps.Keys(b.objects)) {
			if strings.HasPrefix(key, c.query.Get("prefix")) {
				list.Contents = append(list.Contents, struct{ Key string }{key})
			}
		}
		return list, nil
	case "DeleteObject":
		delete(b.objects, c.key)
		return nil, nil
	case "PutObject":
		sum := sha256.Sum256(c.body)
		if stated := c.header.Get("X-Amz-Checksum-Sha256"); stated != "" && stated != base64.StdEncoding.EncodeToString(sum[:]) {
			return nil, badRequest("BadDigest", "The SHA256 you specified did not match the calculated checksum.")
		}
		if strings.Contains(c.header.Get("Content-Encoding"), "aws-chunked") {
			return nil, newAWSError(http.StatusNotImplemented, "NotImplemented", "aws-chunked is not emulated")
		}
		b.objects[c.key] = c.body
		return []byte{}, nil
	}
	if !exists {
		return nil, newAWSError(http.StatusNotFound, "NoSuchKey", "The specified key does not exist.")
	}
	return object, nil
}

// PublicBuckets returns the names of the buckets whose public access is not blocked.
func (a *AWS) PublicBuckets() (names []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, b := range a.buckets {
		if !b.deleted && !b.publicBlocked {
			names = append(names, b.name)
		}
	}
	return names
}

// UnblockPublicAccess removes the public access block of every bucket, like a user in the console.
func (a *AWS) UnblockPublicAccess() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, b := range a.buckets {
		b.publicBlocked = false
	}
}

// StoredObjects returns the names of the objects in all buckets, as BUCKET/KEY, sorted.
func (a *AWS) StoredObjects() (names []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, b := range a.buckets {
		for key := range b.objects {
			names = append(names, b.name+"/"+key)
		}
	}
	slices.Sort(names)
	return names
}
