package telemetry

// MaxNews is maxNews.
const MaxNews = maxNews

// TakeNews counts what take returns.
func TakeNews(o *StreamObserver, now Streams) (news, more int) {
	workers, publishers, more := o.take(now)
	return len(workers) + len(publishers), more
}
