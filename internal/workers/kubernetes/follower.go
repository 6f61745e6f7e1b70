package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// State says how far discovery knows what a source has.
type State string

// The states of a source.
const (
	Syncing      State = "syncing" // not listed yet
	Synced       State = "synced"
	Missing      State = "missing" // the resource, its namespace or the pool does not exist
	Invalid      State = "invalid" // the pool has no selector or no port
	Forbidden    State = "forbidden"
	Unauthorized State = "unauthorized"
	Unreachable  State = "unreachable"
)

const (
	// backoffFirst and backoffMost bound the wait after failures in a row, which doubles and is
	// spread by half. A refused connection costs the server nothing, so it is tried more often.
	backoffFirst   = 250 * time.Millisecond
	backoffMost    = 30 * time.Second
	backoffRefused = 3 * time.Second
	// backoffMissing is the wait while the resource does not exist.
	backoffMissing = 30 * time.Second
	// failuresToList is how many watches in a row fail until the objects are listed again. Refused
	// connections do not count.
	failuresToList = 5
	// A watch is asked to live for minWatchSeconds to twice as long.
	minWatchSeconds = 300
	// silentAfter is how long a watch may be silent: servers send bookmarks about once a minute.
	silentAfter = 150 * time.Second
	// livedLong is how long a watch without messages lives whose end is no failure: servers end
	// watches as they like, and who cannot serve them ends them at once.
	livedLong = 100 * time.Millisecond
	// watchEvery is the least time between the begins of two watches.
	watchEvery = 500 * time.Millisecond
	// listEvery is the least time between the begins of two LISTs. It doubles with each LIST that the
	// server answers, up to backoffMost, until a watch has lived for livedWell.
	listEvery = time.Second
	livedWell = 30 * time.Second
	// answerTime bounds the time for a page of a LIST, and for the begin of a watch, with all of its
	// answer if the server refuses it.
	answerTime = 30 * time.Second
	// maxGone bounds the deleted objects of which late events are known as such.
	maxGone = 4096
)

// sink takes what a follower learns. Its calls come one after the other.
type sink[T any] struct {
	// replace has all objects; those whose object is too large are named in keep, by namespace/name.
	replace func(all []T, keep map[string]bool)
	set     func(T)
	remove  func(T)
}

// apiList is a list of objects as client-go decodes it.
type apiList interface {
	runtime.Object
	metav1.ListInterface
}

// follower lists and watches one kind of object with client-go's requests and decoders, and tells a sink.
// client-go's informers are not used: they say nothing of states, keep each LIST as a whole in memory, and
// wait in the same way after each kind of failure.
type follower[T any] struct {
	client    rest.Interface
	resource  string // pods
	group     string // "" of pods
	namespace string
	labels    string // the selector
	fields    string
	list      func() apiList // an empty list to decode into
	// convert keeps what is needed of a list's objects, or of the object of an event.
	convert func(runtime.Object) []object[T]
	sink    sink[T]
	counts  *Counters
	changed func() // the state has changed

	// Only run uses these.
	page     int64                    // objects of a page: pageSize, fewer where one could not be read
	versions map[string]objectVersion // the newest of each object, by its key
	gone     int                      // how many of them were deleted

	mu       sync.Mutex // guards the fields below
	state    State
	since    time.Time
	problem  string        // the last failure, "" after a success
	failures int           // in a row
	kind     failure       // of the last of them
	due      time.Time     // when the next request may be made
	watchDue time.Time     // when the next watch may begin
	listDue  time.Time     // when the next LIST may begin
	listGap  time.Duration // from the LIST before it; 0: none has been answered since a watch lived well
	message  time.Time     // of the last message
	listed   bool
	cause    string // of the next LIST
}

// failure is a kind of failure.
type failure uint8

const (
	noFailure failure = iota
	refused           // connection
	broken            // other failures of connections and servers
	throttled
	forbidden
	unauthorized
	missing
	expired
	unreadable
)

// failureOf returns the kind of an error of client-go.
func failureOf(err error) failure {
	switch {
	case err == nil:
		return noFailure
	case apierrors.IsResourceExpired(err) || apierrors.IsGone(err):
		return expired
	case apierrors.IsForbidden(err):
		return forbidden
	case apierrors.IsUnauthorized(err):
		return unauthorized
	case apierrors.IsTooManyRequests(err):
		return throttled
	case apierrors.IsNotFound(err):
		return missing
	case errors.Is(err, syscall.ECONNREFUSED):
		return refused
	case errors.Is(err, errTooLarge) || errors.Is(err, errMemory) || errors.Is(err, errUnreadable) || apierrors.HasStatusCause(err, watchDecoding):
		return unreadable
	}
	return broken
}

// errUnreadable is the error of an answer that is no list of the objects that were asked for.
var errUnreadable = errors.New("the answer cannot be read")

// watchDecoding is the cause of the status by which client-go ends a watch that it cannot read on: an
// event is no object, or its bytes could not be read (rest.Request.Watch).
const watchDecoding metav1.CauseType = "ClientWatchDecoding"

// start sets the state at the begin.
func (f *follower[T]) start(now time.Time) *follower[T] {
	f.state, f.since, f.cause = Syncing, now, "start"
	f.page, f.versions = pageSize, make(map[string]objectVersion)
	return f
}

// String is the kind as a label of metrics.
func (f failure) String() string {
	return [...]string{"none", "refused", "broken", "throttled", "forbidden", "unauthorized", "missing", "expired", "unreadable"}[f]
}

// run lists and watches until ctx ends.
func (f *follower[T]) run(ctx context.Context) {
	for ctx.Err() == nil {
		if version, listed := f.relist(ctx); listed {
			f.follow(ctx, version)
		}
	}
}

func (f *follower[T]) request() *rest.Request {
	r := f.client.Get().Namespace(f.namespace).Resource(f.resource).MaxRetries(0)
	if f.labels != "" {
		r = r.Param("labelSelector", f.labels)
	}
	if f.fields != "" {
		r = r.Param("fieldSelector", f.fields)
	}
	return r
}

// relist lists all objects as they are now, page by page, and returns their version. After a failure, which
// it records, nothing is told.
func (f *follower[T]) relist(ctx context.Context) (version string, listed bool) {
	if f.pause(ctx, true) != nil {
		return "", false
	}
	f.counts.list(f.resource, f.takeCause())
	begun := time.Now()
	var all []object[T]
	limit, next := f.page, ""
	for {
		page, err := f.listPage(ctx, limit, next)
		kind := failureOf(err)
		if next == "" && limit > 0 && (err == nil || kind == expired) {
			f.spaceLists(begun)
		}
		switch {
		case err == nil:
		case kind == expired && next != "": // the state of the first page is not kept: all at once
			all, limit, next = nil, 0, ""
			continue
		default:
			if kind == unreadable || errors.Is(err, errSlow) {
				f.page = max(f.page/4, 1)
			}
			f.failed(err, kind)
			return "", false
		}
		f.heard()
		all = append(all, f.convert(page)...)
		if next = page.GetContinue(); next == "" {
			f.replace(all)
			return page.GetResourceVersion(), true
		}
	}
}

// listPage asks for a page of a LIST: limit objects, 0 for all, after those of the page that ended with next.
func (f *follower[T]) listPage(ctx context.Context, limit int64, next string) (apiList, error) {
	r := f.request()
	if limit > 0 {
		r = r.Param("limit", strconv.FormatInt(limit, 10))
	}
	if next != "" {
		r = r.Param("continue", next)
	}
	page := f.list()
	answer, cancel := context.WithTimeoutCause(ctx, answerTime, errSlow)
	defer cancel()
	result := r.Do(answer)
	err := slow(answer, result.Error())
	if err == nil {
		if wrong := result.Into(page); wrong != nil {
			err = fmt.Errorf("%w: %w", errUnreadable, wrong)
		}
	}
	f.counts.request(f.resource, "list", err)
	return page, err
}

// follow follows the changes after a version until ctx ends or the objects have to be listed: it begins
// another watch where one has ended.
func (f *follower[T]) follow(ctx context.Context, version string) {
	for list := false; !list; {
		var w *begunWatch
		if w, list = f.watch(ctx, version); w != nil {
			version, list = f.receive(ctx, w, version)
		}
	}
}

// watch begins a watch after a version. It returns nil after a failure, which it records, and whether the
// objects have to be listed then.
func (f *follower[T]) watch(ctx context.Context, version string) (begun *begunWatch, list bool) {
	if f.pause(ctx, false) != nil {
		return nil, true
	}
	seconds := minWatchSeconds + rand.IntN(minWatchSeconds+1)
	r := f.request().Param("watch", "1").Param("allowWatchBookmarks", "true").Param("resourceVersion", version).
		Param("timeoutSeconds", strconv.Itoa(seconds))
	watching, cancel := context.WithCancelCause(ctx)
	late := time.AfterFunc(answerTime, func() { cancel(errSlow) })
	asked := time.Now()
	w, err := r.Watch(watching)
	late.Stop()
	err = slow(watching, err)
	f.counts.request(f.resource, "watch", err)
	if err != nil {
		cancel(nil)
		return nil, f.failed(err, failureOf(err))
	}
	f.become(Synced, "")
	return &begunWatch{w, asked, time.Now(), func() { cancel(nil) }}, false
}

// errSlow is an answer that takes longer than answerTime.
var errSlow = fmt.Errorf("the API server has not finished its answer within %v", answerTime)

// slow returns errSlow for the error of a request that was ended by it, else the error.
func slow(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), errSlow) {
		return errSlow
	}
	return err
}

// begunWatch is a watch of the server with when it was asked for and when it began. The caller must
// call end.
type begunWatch struct {
	watch.Interface
	asked, at time.Time
	end       context.CancelFunc
}

// spaceLists sets when the next LIST may begin after one that has begun and was answered.
func (f *follower[T]) spaceLists(begun time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.listGap = min(max(listEvery, 2*f.listGap), backoffMost)
	f.listDue = begun.Add(f.listGap)
}

// pause waits until the next request, a LIST or a watch, may be made.
func (f *follower[T]) pause(ctx context.Context, list bool) error {
	f.mu.Lock()
	spaced := f.watchDue
	if list {
		spaced = f.listDue
	}
	wait := max(time.Until(f.due), time.Until(spaced))
	f.mu.Unlock()
	if wait <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// failed records a failure, and reports whether the objects have to be listed.
func (f *follower[T]) failed(err error, kind failure) (list bool) {
	if errors.Is(err, context.Canceled) {
		return true
	}
	f.mu.Lock()
	if kind != f.kind && (kind == refused || f.kind == refused) {
		f.failures = 0 // the server answers again, or is away
	}
	f.kind = kind
	f.failures++
	f.problem = err.Error()
	wait := backoffFirst << min(f.failures-1, 10)
	most := backoffMost
	switch kind {
	case refused:
		most = backoffRefused
	case missing:
		wait = backoffMissing
	case expired:
		most = 0 // a LIST brings a version that is kept, and LISTs are spaced
	}
	wait = min(wait, most)
	wait = wait/2 + time.Duration(rand.Int64N(int64(wait)+1)) // ± 50 %
	if kind == missing {
		wait = min(wait, backoffMissing)
	}
	if after, told := apierrors.SuggestsClientDelay(err); told {
		wait = max(wait, time.Duration(after)*time.Second)
	}
	f.due = time.Now().Add(wait)
	list = kind == expired || kind == unreadable || kind != refused && f.failures >= failuresToList
	if list {
		f.cause = kind.String()
	}
	state, known := f.state, f.listed
	f.mu.Unlock()
	switch kind {
	case forbidden:
		state = Forbidden
	case unauthorized:
		state = Unauthorized
	case missing:
		state = Missing
	case refused, broken, throttled, unreadable:
		if !known {
			state = Unreachable
		}
	}
	f.become(state, f.explain(err, kind))
	return list
}

// explain returns a failure in the words of an operator: what to do comes first, as the log cuts long
// texts.
func (f *follower[T]) explain(err error, kind failure) string {
	rule := fmt.Sprintf(`{apiGroups: [%q], resources: [%s], verbs: [get, list, watch]}`, f.group, f.resource)
	switch kind {
	case forbidden:
		return fmt.Sprintf("the Role of the ServiceAccount lacks the rule %s in the namespace %s: %v", rule, f.namespace, err)
	case missing:
		return fmt.Sprintf("the API server does not know %s, or the namespace %s does not exist: %v", strings.Trim(f.resource+"."+f.group, "."), f.namespace, err)
	}
	return err.Error()
}

// heard notes a message of the server.
func (f *follower[T]) heard() {
	f.mu.Lock()
	f.message, f.failures, f.kind, f.due = time.Now(), 0, noFailure, time.Time{}
	f.mu.Unlock()
}

// ended records the end of a watch.
func (f *follower[T]) ended(w *begunWatch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(w.at) >= livedWell {
		f.listGap, f.listDue = 0, time.Time{}
	}
	f.watchDue = w.asked.Add(watchEvery)
}

// become sets the state and the problem.
func (f *follower[T]) become(s State, problem string) {
	f.mu.Lock()
	if s == Synced && !f.listed {
		s = f.state
	}
	same := s == f.state && problem == f.problem
	if s != f.state {
		f.state, f.since = s, time.Now()
	}
	f.problem = problem
	f.mu.Unlock()
	if !same || problem != "" {
		f.changed()
	}
}

func (f *follower[T]) takeCause() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	cause := f.cause
	f.cause = "ended" // unless a failure says otherwise
	return cause
}

// status is what a follower shows.
type status struct {
	State   State
	Since   time.Time
	Problem string
	Message time.Time // zero: none yet
	Listed  bool
}

func (f *follower[T]) status() status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return status{f.state, f.since, f.problem, f.message, f.listed}
}

// objectVersion is a resource version, and whether the object was deleted with it.
type objectVersion struct {
	number uint64
	gone   bool
}

// late reports whether the state of an object is older than what is known of it, and notes its version
// otherwise. One without a version is never late.
func (f *follower[T]) late(key string, number uint64, gone bool) bool {
	known, is := f.versions[key]
	switch {
	case number == 0 || !is && len(f.versions) >= maxTracked:
		return false
	case number < known.number || number == known.number && known.gone:
		return true
	}
	if gone {
		if f.gone++; f.gone > maxGone {
			maps.DeleteFunc(f.versions, func(_ string, v objectVersion) bool { return v.gone })
			f.gone = 1
		}
	}
	f.versions[key] = objectVersion{number, gone}
	return false
}

// replace tells the sink all objects.
func (f *follower[T]) replace(all []object[T]) {
	values := make([]T, 0, len(all))
	var keep map[string]bool
	f.versions, f.gone = make(map[string]objectVersion, len(all)), 0
	for i := range all {
		o := &all[i]
		if o.tooLarge {
			f.counts.unread(f.resource)
			if keep == nil {
				keep = make(map[string]bool)
			}
			keep[o.key] = true
			continue
		}
		f.late(o.key, o.version, false)
		values = append(values, o.value)
	}
	f.sink.replace(values, keep)
	f.page = min(2*f.page, pageSize)
	f.mu.Lock()
	f.listed = true
	f.mu.Unlock()
	f.become(Synced, "")
}

// change tells the sink an event.
func (f *follower[T]) change(kind watch.EventType, o *object[T]) {
	gone := kind == watch.Deleted
	switch {
	case kind == watch.Bookmark:
	case o.tooLarge && !gone:
		f.counts.unread(f.resource)
	case f.late(o.key, o.version, gone):
	case gone:
		f.sink.remove(o.value)
	default:
		f.sink.set(o.value)
	}
}

// receive passes on the events of a watch until it ends. It returns the version after which the next one
// begins, and whether the objects have to be listed.
func (f *follower[T]) receive(ctx context.Context, w *begunWatch, version string) (newest string, list bool) {
	defer w.end()
	defer w.Stop()
	defer f.ended(w)
	number, _ := strconv.ParseUint(version, 10, 64)
	quiet := time.NewTimer(silentAfter)
	defer quiet.Stop()
	lived := false
	for {
		var e watch.Event
		var open bool
		select {
		case <-ctx.Done():
			return version, true
		case <-quiet.C:
			return version, f.silent()
		case e, open = <-w.ResultChan():
		}
		switch {
		case !open:
			if lived || time.Since(w.at) >= livedLong {
				f.heard() // an end is no failure
			}
			return version, f.failed(errEnded, broken)
		case e.Type == watch.Error:
			err := apierrors.FromObject(e.Object)
			kind := failureOf(err)
			f.counts.event(f.resource, "error")
			if kind == unreadable {
				f.counts.unread(f.resource)
			}
			return version, f.failed(err, kind)
		}
		lived = true
		f.heard()
		quiet.Reset(silentAfter)
		f.counts.event(f.resource, strings.ToLower(string(e.Type)))
		if o, ok := e.Object.(metav1.Object); ok && versionOf(o) >= number {
			number, version = versionOf(o), o.GetResourceVersion()
		}
		for _, o := range f.convert(e.Object) {
			f.change(e.Type, &o)
		}
	}
}

// errEnded is the end of a watch.
var errEnded = errors.New("the watch has ended")

// silent records that a watch has been silent for too long, and reports whether the objects have to
// be listed.
func (f *follower[T]) silent() (list bool) {
	list = f.failed(fmt.Errorf("no message for %v", silentAfter), broken)
	f.become(Unreachable, fmt.Sprintf("no message for %v", silentAfter))
	return list
}

// check makes a source without messages unreachable.
func (f *follower[T]) check(now time.Time) {
	st := f.status()
	if st.State == Synced && !st.Message.IsZero() && now.Sub(st.Message) > silentAfter {
		f.become(Unreachable, cmp.Or(st.Problem, fmt.Sprintf("no message for %v", silentAfter)))
	}
}
